"""The one policy that the engine should use, and what the engine says that it does use.

The control plane decides: its first policy on a connection replaces the stored one even with a lower revision (its
record may have been restored from a backup). Within one connection revisions only grow: a lower one is a late one.
"""

import asyncio
import logging
from collections.abc import Callable

from connector.agent.state import StateDirectory
from connector.protocol import AgentToEngine, PolicyApplied, SetPolicy

logger = logging.getLogger(__name__)


class PolicyDesk:
    """``wanted`` starts as the policy on disk. ``send`` is the link's, which refuses while there is no engine.

    The policy on disk may be old, and an engine that starts serves its first request under what it gets first. So
    nothing is pushed before the control plane has spoken, or is known not to (``settle``).
    """

    def __init__(self, state: StateDirectory, send: Callable[[AgentToEngine], bool]) -> None:
        self.wanted = state.load_policy()
        self.applied: PolicyApplied | None = None
        self._state = state
        self._send = send
        self._newest_of_connection = -1
        self._is_settled = False

    def settle(self) -> None:
        """The control plane can't be reached, has nothing for this engine, or takes too long: the disk's word holds."""
        if not self._is_settled:
            self._is_settled = True
            self.push()

    def connection_opened(self) -> None:
        """A new connection to the control plane: its first policy counts, whatever its revision."""
        self._newest_of_connection = -1

    async def accept(self, policy: SetPolicy) -> None:
        """Hands it to the engine once it is on disk; a disk that fails is logged and doesn't hold the policy up."""
        if policy.revision < self._newest_of_connection:
            logger.info("policy_ignored revision=%d newest=%d", policy.revision, self._newest_of_connection)
            return
        self._newest_of_connection = policy.revision
        self._is_settled = True
        self.wanted = policy
        try:
            await asyncio.to_thread(self._state.store_policy, policy)
        except OSError as error:
            logger.error("policy_not_stored revision=%d error=%s", policy.revision, error)
        logger.info("policy_received revision=%d", policy.revision)
        self.push()

    def push(self) -> None:
        """To the engine, if both are there. After each hello: a restarted engine gets it before its first request."""
        if self.wanted is not None and self._is_settled:
            self._send(self.wanted)

    def engine_applied(self, applied: PolicyApplied) -> None:
        self.applied = applied
        if (
            self.wanted is not None
            and applied.revision == self.wanted.revision
            and applied.values != self.wanted.values
        ):
            logger.warning("policy_differs revision=%d unsupported=%s", applied.revision, applied.unsupported_fields)
