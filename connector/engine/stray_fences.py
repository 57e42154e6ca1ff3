"""Fence READs whose pull is over, but which may still write: their landing words come back once they have ended."""

import logging
from typing import Any

import msgspec

from connector.engine import guards
from connector.engine.fence import FenceMemory
from connector.engine.pulls import is_verdict

logger = logging.getLogger("vllm.backhaul.fence")


class StrayFence(msgspec.Struct, frozen=True):
    handle: Any
    landing: int
    engine_id: str


class StrayFences:
    """A late answer into a word that serves another pull could forge that pull's proof: a word is never reused early.

    Used under the agent's lock.
    """

    def __init__(self, agent: Any, memory: FenceMemory) -> None:
        self._agent = agent
        self._memory = memory
        self._open: list[StrayFence] = []

    def __len__(self) -> int:
        return len(self._open)

    @property
    def engines(self) -> set[str]:
        """Peers that must stay connected for their sake."""
        return {fence.engine_id for fence in self._open}

    def add(self, fence: StrayFence) -> None:
        if self._has_ended(fence):
            return
        self._open.append(fence)
        guards.count("stray_fence")
        logger.warning("A fence READ from %s goes on; %d landing words wait.", fence.engine_id, len(self._open))

    def poll(self) -> None:
        if self._open:
            self._open = [fence for fence in self._open if not self._has_ended(fence)]

    def _has_ended(self, fence: StrayFence) -> bool:
        try:
            if self._agent.check_xfer_state(fence.handle) == "PROC":
                return False
        except Exception as error:  # noqa: BLE001 - NIXL raises untyped errors
            if not is_verdict(error):
                return False
        try:
            self._agent.release_xfer_handle(fence.handle)
        except Exception as error:  # noqa: BLE001 - NIXL raises untyped errors
            logger.debug("A fence READ can't be released yet: %s", error)
            return False
        self._memory.return_landing(fence.landing)
        return True
