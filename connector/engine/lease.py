"""One lease in few bytes: everything that an offer says of it, and how long it lasts, packed into one record."""

import struct
import time
from array import array
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, Generic, NamedTuple, TypeVar

from connector.compact import pack_texts, unpack_texts
from connector.engine.cache_shape import BlockIds
from connector.engine.digests import DIGEST_BYTES
from connector.protocol import LeaseKind, LeaseState, PolicyPatch, PolicyValues

N = TypeVar("N", int, float)


class Cell(Generic[N]):
    """A number at a fixed place in the record of its lease."""

    def __init__(self, kind: str, offset: int) -> None:
        self._layout = struct.Struct(f"<{kind}")
        self._offset = offset

    def __get__(self, lease: Any, _owner: type) -> N:
        value: N = self._layout.unpack_from(lease.record, self._offset)[0]
        return value

    def __set__(self, lease: Any, value: N) -> None:
        self._layout.pack_into(lease.record, self._offset, value)


class Bit:
    """A truth value: one bit of the lease's flags."""

    def __init__(self, bit: int) -> None:
        self._mask = 1 << bit

    def __get__(self, lease: Any, _owner: type) -> bool:
        return bool(lease.flags & self._mask)

    def __set__(self, lease: Any, value: bool) -> None:
        lease.flags = lease.flags | self._mask if value else lease.flags & ~self._mask


STANDING = struct.Struct("<ddIIIIH")
HEAD = struct.Struct("<ddIIIIHdQIHIi")
"""The cells of ``Lease``, in their order; ``STANDING`` are the first of them."""
NO_OWN_TTL = -1
_COUNT = struct.Struct("<I")


class Standing(NamedTuple):
    """The cells of a lease that eviction weighs."""

    deadline: float
    used_at: float
    num_tokens: int
    num_unique: int
    num_blocks: int
    flags: int
    slot: int

    @property
    def is_pinned(self) -> bool:
        return bool(self.flags & 1)


class Lease:
    """A granted lease. Invariant: in the table exactly while vLLM keeps the request's blocks for it.

    ``deadline``, ``renewed_at`` and ``used_at`` (the grant, or the last read) are this process's ``perf_counter``.
    ``ending`` is set once its release was asked of the workers, and says how it will be reported when they have
    confirmed. ``slot`` and ``generation`` are those of its fence word; the slot is its place in the table as well.
    ``num_blocks`` are its distinct blocks, ``num_unique`` those that no other live lease holds. The ``request_id`` is
    vLLM's own string, which lives as long.
    """

    __slots__ = ("ending", "record", "request_id", "tenant")

    deadline = Cell[float]("d", 0)
    used_at = Cell[float]("d", 8)
    num_tokens = Cell[int]("I", 16)
    num_unique = Cell[int]("I", 20)
    num_blocks = Cell[int]("I", 24)
    flags = Cell[int]("I", 28)
    slot = Cell[int]("H", 32)
    renewed_at = Cell[float]("d", 34)
    generation = Cell[int]("Q", 42)
    num_reads = Cell[int]("I", 50)
    _num_groups = Cell[int]("H", 54)
    _num_text_bytes = Cell[int]("I", 56)
    _own_ttl = Cell[int]("i", 60)

    pinned = Bit(0)
    is_handoff = Bit(1)
    is_kept = Bit(2)
    """Whether the workers were told that a read does not free it."""
    _has_own_reuse = Bit(3)
    _own_reuse = Bit(4)
    _has_own_release = Bit(5)
    _own_release = Bit(6)

    def __init__(
        self,
        *,
        request_id: str,
        tenant: str,
        kind: LeaseKind,
        lease_id: str,
        session_id: str,
        turn_id: str,
        digest_key_id: str,
        chain: Iterable[str],
        block_ids: BlockIds,
        digests: bytes,
        tail_digest: bytes,
        num_tokens: int,
        fence: tuple[int, int],
        granted_at: float,
        deadline: float,
        policy: PolicyPatch | None = None,
    ) -> None:
        """``digests`` are 16 bytes a whole block, ``fence`` is (slot, generation), ``policy`` the session's own."""
        self.request_id, self.tenant = request_id, tenant
        self.ending: tuple[LeaseState, str] | None = None
        texts = pack_texts((lease_id, session_id, turn_id, digest_key_id, *chain))
        counts = b"".join(_COUNT.pack(len(group)) for group in block_ids)
        ids = b"".join(array("I", group).tobytes() for group in block_ids)
        slot, generation = fence
        num_blocks = len(frozenset[int]().union(*block_ids))
        flags = (kind is LeaseKind.HANDOFF) << 1
        standing = (deadline, granted_at, num_tokens, 0, num_blocks, flags, slot)
        head = HEAD.pack(*standing, granted_at, generation, 0, len(block_ids), len(texts), NO_OWN_TTL)
        self.record = bytearray(b"".join((head, texts, tail_digest, counts, ids, digests)))
        self.take_policy(policy)

    def take_policy(self, policy: PolicyPatch | None) -> None:
        """The session's own values, which an engine's policy does not touch."""
        own = policy or PolicyPatch()
        self._own_ttl = NO_OWN_TTL if own.decoder_kv_blocks_ttl is None else own.decoder_kv_blocks_ttl
        self._has_own_reuse, self._own_reuse = own.bidirectional_kv_xfer is not None, bool(own.bidirectional_kv_xfer)
        self._has_own_release, self._own_release = own.release_on_read is not None, bool(own.release_on_read)

    # ------------------------------------------------ the policy that it lives under

    @property
    def has_own_ttl(self) -> bool:
        return self._own_ttl != NO_OWN_TTL

    def ttl_seconds(self, engine: PolicyValues) -> int:
        """0: it may not be held, unless it is pinned."""
        is_reused = self._own_reuse if self._has_own_reuse else engine.bidirectional_kv_xfer
        if not is_reused:
            return 0
        return self._own_ttl if self.has_own_ttl else engine.decoder_kv_blocks_ttl

    def is_freed_by_read(self, engine: PolicyValues) -> bool:
        """An operator's pin outranks ``release_on_read``."""
        return not self.pinned and (self._own_release if self._has_own_release else engine.release_on_read)

    # ------------------------------------------------ what the record says

    @property
    def kind(self) -> LeaseKind:
        return LeaseKind.HANDOFF if self.is_handoff else LeaseKind.SESSION

    @property
    def is_live(self) -> bool:
        """A session lease that can still be offered."""
        return self.ending is None and not self.is_handoff

    def standing(self) -> "Standing":
        """What eviction weighs, in one look."""
        return Standing._make(STANDING.unpack_from(self.record))

    @property
    def session_id(self) -> str:
        return self._text(1)

    @property
    def turn_id(self) -> str:
        return self._text(2)

    @property
    def texts(self) -> tuple[str, ...]:
        """Ids of lease, session, turn and digest key, then the router's chain."""
        return tuple(unpack_texts(self._texts()))

    @property
    def digest_key_id(self) -> str:
        return self._text(3)

    @property
    def chain(self) -> tuple[str, ...]:
        return self.texts[4:]

    @property
    def lease_id(self) -> str:
        return self._text(0)

    @property
    def tail_digest(self) -> bytes:
        start = HEAD.size + self._num_text_bytes
        return bytes(self.record[start : start + DIGEST_BYTES])

    @property
    def block_ids(self) -> tuple[tuple[int, ...], ...]:
        """``[groups][blocks]``."""
        ids, counts = self._ids(), self._counts()
        ends = [sum(counts[: index + 1]) for index in range(len(counts))]
        return tuple(tuple(ids[end - count : end]) for end, count in zip(ends, counts, strict=True))

    @property
    def digests(self) -> bytes:
        return bytes(self.record[self._ids_start() + 4 * sum(self._counts()) :])

    def blocks(self) -> Sequence[int] | frozenset[int]:
        """The distinct blocks that it holds."""
        ids = self._ids()
        return frozenset(ids) if self._num_groups > 1 else ids

    def remaining_seconds(self) -> float:
        return max(0.0, self.deadline - time.perf_counter())

    def _text(self, index: int) -> str:
        return next(islice(unpack_texts(self._texts()), index, None))

    def _texts(self) -> bytes:
        return bytes(self.record[HEAD.size : HEAD.size + self._num_text_bytes])

    def _counts(self) -> tuple[int, ...]:
        start = HEAD.size + self._num_text_bytes + DIGEST_BYTES
        return struct.unpack_from(f"<{self._num_groups}I", self.record, start)

    def _ids_start(self) -> int:
        return HEAD.size + self._num_text_bytes + DIGEST_BYTES + 4 * self._num_groups

    def _ids(self) -> "array[int]":
        start = self._ids_start()
        ids = array("I")
        ids.frombytes(bytes(self.record[start : start + 4 * sum(self._counts())]))
        return ids
