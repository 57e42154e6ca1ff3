"""Notices of peers that have read this engine's blocks: which of them vLLM may see, and which it would die of."""

import logging
from collections.abc import Callable
from enum import StrEnum

from connector.engine import guards

logger = logging.getLogger("vllm.backhaul.notices")

HEARTBEAT = b"HB:"
MAX_WAITING = 4096
MAX_NOTICE_BYTES = 65536
MAX_READER_DIGITS = 6


class NoticeFate(StrEnum):
    """``PASS``: to vLLM, which frees the blocks. ``KEEP``: counted only. ``WAIT``: until the lease is known here."""

    PASS = "pass"  # noqa: S105 - not a password
    KEEP = "keep"
    WAIT = "wait"


class ReadNotices:
    """vLLM 0.32 frees what a notice names, even a running request's blocks (its core dies of that), and its worker dies
    of one it can't parse. So malformed ones are dropped, and early ones wait until the request's lease is known."""

    def __init__(self, fate_of: Callable[[str], NoticeFate]) -> None:
        self._fate_of = fate_of
        self._waiting: list[tuple[str, bytes]] = []
        self._reads: list[str] = []
        self._passed_reads: set[str] = set()

    def _none(self, _fresh: dict[str, list[bytes]]) -> dict[str, list[bytes]]:
        return {}

    @guards.contained(_none)
    def sort(self, fresh: dict[str, list[bytes]]) -> dict[str, list[bytes]]:
        """What vLLM is to see, by sending agent, of these and of those that had to wait."""
        waiting, self._waiting = self._waiting, []
        passed: dict[str, list[bytes]] = {}
        for agent, message in [*waiting, *((agent, m) for agent, messages in fresh.items() for m in messages)]:
            if self._is_for_vllm(agent, message):
                passed.setdefault(agent, []).append(message)
        return passed

    def _is_for_vllm(self, agent: str, message: bytes) -> bool:
        if message.startswith(HEARTBEAT) and _is_text(message):
            return True
        request_id = _request_of(message)
        if request_id is None:
            guards.count("malformed_notice")
            logger.warning("Dropped a malformed notice of %d bytes.", len(message))
            return False
        fate = self._fate_of(request_id)
        if fate is NoticeFate.WAIT:
            self._wait(agent, message)
            return False
        self._reads.append(request_id)
        if fate is NoticeFate.PASS:
            self._passed_reads.add(request_id)
        return fate is NoticeFate.PASS

    def _wait(self, agent: str, message: bytes) -> None:
        if len(self._waiting) >= MAX_WAITING:
            guards.count("too_many_early_notices")
            return
        self._waiting.append((agent, message))

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def has_reads(self) -> bool:
        return bool(self._reads)

    def take_reads(self) -> list[str]:
        """Requests whose blocks a peer has read, once per read, since the last call."""
        reads, self._reads = self._reads, []
        return reads

    def take_passed_reads(self) -> set[str]:
        """Those of them that vLLM was told of, so that it freed the blocks."""
        passed, self._passed_reads = self._passed_reads, set()
        return passed


def _is_text(message: bytes) -> bool:
    if len(message) > MAX_NOTICE_BYTES:
        return False
    try:
        message.decode()
    except UnicodeDecodeError:
        return False
    return True


def _request_of(message: bytes) -> str | None:
    """The request that ``<request id>:<number of readers>`` names, as vLLM will parse it, or ``None``."""
    if message.startswith(HEARTBEAT) or not _is_text(message):
        return None
    request_id, colon, num_readers = message.decode().rpartition(":")
    is_number = num_readers.isascii() and num_readers.isdigit() and len(num_readers) <= MAX_READER_DIGITS
    return request_id if colon and request_id and is_number and int(num_readers) > 0 else None
