"""Fake NIXL agents that reach each other: READs copy what the source's blocks hold just then, words are real memory."""

import ctypes
from typing import Any

from tests.contract.fake_nixl import FakeHandle, FakeNixl, NixlDisconnectError

Blocks = dict[tuple[int, int], int]
"""What a KV cache holds: a value for each (block, offset)."""


class Wire:
    """All agents of a fleet, by name."""

    def __init__(self) -> None:
        self.agents: dict[str, WiredNixl] = {}

    def lose(self, name: str) -> None:
        """Its process dies: each READ from it fails at every look from now on."""
        self.agents.pop(name).is_alive = False


class WiredNixl(FakeNixl):
    """``is_prompt``: READs are done when looked at; otherwise a test or a state machine ends each by hand."""

    def __init__(self, wire: Wire, name: str, blocks: Blocks, block_size: int) -> None:
        super().__init__()
        self.wire = wire
        self.name = name
        self.blocks = blocks
        self.block_size = block_size
        self.is_prompt = True
        self.is_alive = True
        wire.agents[name] = self

    def check_remote_metadata(self, _agent: str) -> bool:
        return True

    def send_notif(self, agent: str, notif_msg: bytes) -> None:
        super().send_notif(agent, notif_msg)
        if agent not in self.wire.agents:
            raise NixlDisconnectError
        self.wire.agents[agent].incoming.append({self.name: [notif_msg]})

    def get_new_notifs(self) -> dict[str, list[bytes]]:
        merged: dict[str, list[bytes]] = {}
        while self.incoming:
            for agent, messages in super().get_new_notifs().items():
                merged.setdefault(agent, []).extend(messages)
        return merged

    def check_xfer_state(self, handle: FakeHandle) -> str:
        if self.is_prompt:
            self.finish(handle)
        return super().check_xfer_state(handle)

    def finish(self, handle: FakeHandle) -> None:
        """The READ ends now, with what the source holds now."""
        if handle.state != "PROC":
            return
        if self.source_of(handle) not in self.wire.agents:
            handle.state = NixlDisconnectError()
            return
        self.move(handle)
        handle.state = "DONE"

    def move(self, handle: FakeHandle) -> None:
        """Bytes of a READ arrive, whether or not anyone still waits for them."""
        if handle.operation_of == "fence":
            ((address, _, _),), ((landing, _, _),) = handle.facts["remote"].regions, handle.facts["local"].regions
            ctypes.c_uint64.from_address(landing).value = ctypes.c_uint64.from_address(address).value
            return
        source = self.wire.agents[self.source_of(handle)]
        _, into, _, out_of = handle.facts["args"]
        for mine, theirs in zip(into, out_of, strict=True):
            for offset in range(self.block_size):
                self.blocks[mine, offset] = source.blocks.get((theirs, offset), 0)

    def source_of(self, handle: FakeHandle) -> str:
        if handle.operation_of == "fence":
            return str(handle.facts["remote_agent"])
        return str(handle.facts["args"][2])

    def open_reads(self) -> list[FakeHandle]:
        """Posted, neither over nor known as over; data and fences."""
        return [handle for handle in (*self.reads, *self.fences) if handle.is_posted and handle.state == "PROC"]

    def live_handles(self) -> list[FakeHandle]:
        return [handle for handle in (*self.reads, *self.fences) if not handle.is_released]


def remote_side(agent: str) -> Any:
    """Stands for vLLM's handle of a peer's descriptors, and says whose they are."""
    return agent
