"""A NIXL agent at the transport seam, whose transfers do what a test scripts; it moves no data but fence words."""

import ctypes
from types import SimpleNamespace
from typing import Any

WORD_BYTES = 8


class NixlDisconnectError(Exception):
    """As NIXL raises it from a status call once the peer's process is gone; NIXL's own name says so."""


NixlDisconnectError.__name__ = "nixlRemoteDisconnectError"


class FakeHandle:
    """One transfer. ``state`` is what the next status call says; an exception there is raised."""

    def __init__(self, operation: str, **facts: Any) -> None:
        self.operation = operation
        self.operation_of = "fence" if "remote_agent" in facts else "data"
        self.facts = facts
        self.state: str | Exception = "PROC"
        self.is_released = False
        self.is_posted = False
        self.num_looks = 0


class FakeNixl:
    """Records every call in ``calls``; data READs are in ``reads``, fence READs in ``fences``."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.reads: list[FakeHandle] = []
        self.fences: list[FakeHandle] = []
        self.sent: list[tuple[str, bytes]] = []
        self.incoming: list[dict[str, list[bytes]]] = []
        self.faults: dict[str, Exception] = {}
        self.name = "fake-agent"

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if name in self.faults:
            raise self.faults[name]

    def make_prepped_xfer(self, operation: str, *args: Any, notif_msg: bytes = b"") -> FakeHandle:
        self._called("make_prepped_xfer")
        self.reads.append(FakeHandle(operation, args=args, notif_msg=notif_msg))
        return self.reads[-1]

    def get_xfer_descs(self, regions: list[tuple[int, int, int]], kind: str) -> Any:
        return SimpleNamespace(regions=regions, kind=kind)

    def initialize_xfer(self, operation: str, local: Any, remote: Any, remote_agent: str) -> FakeHandle:
        self._called("initialize_xfer")
        self.fences.append(FakeHandle(operation, local=local, remote=remote, remote_agent=remote_agent))
        return self.fences[-1]

    def transfer(self, handle: FakeHandle) -> str:
        try:
            self._called("transfer_fence" if handle in self.fences else "transfer_data")
        except Exception as fault:
            handle.state = fault
            raise
        handle.is_posted = True
        return "PROC"

    def check_xfer_state(self, handle: FakeHandle) -> str:
        assert not handle.is_released, "a released handle must not be used"
        handle.num_looks += 1
        if isinstance(handle.state, Exception):
            raise handle.state
        return handle.state

    def get_xfer_telemetry(self, handle: FakeHandle) -> Any:
        self._called("get_xfer_telemetry")
        return SimpleNamespace(totalBytes=4096, descCount=24, xferDuration=1000, postDuration=10, startTime=1)

    def release_xfer_handle(self, handle: FakeHandle) -> None:
        self._called("release_xfer_handle")
        assert not handle.is_released, "a handle must be released once"
        handle.is_released = True

    def send_notif(self, agent: str, notif_msg: bytes) -> None:
        self._called("send_notif")
        self.sent.append((agent, notif_msg))

    def get_new_notifs(self) -> dict[str, list[bytes]]:
        self._called("get_new_notifs")
        return self.incoming.pop(0) if self.incoming else {}

    def answer_fence(self, index: int, word: int) -> None:
        """The READ of the source's word ends, having brought this value."""
        handle = self.fences[index]
        ((address, num_bytes, _device),) = handle.facts["local"].regions
        assert (num_bytes, handle.is_posted) == (WORD_BYTES, True)
        ctypes.c_uint64.from_address(address).value = word
        handle.state = "DONE"

    def notices(self) -> list[tuple[str, bytes]]:
        """Notices sent, but for the hint that precedes a READ."""
        return [sent for sent in self.sent if not sent[1].startswith(b"HB:")]
