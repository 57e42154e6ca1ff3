"""The live policy of one engine: one immutable snapshot, replaced at once by the link thread, read by every hook."""

import logging

from connector.protocol import PolicyApplied, PolicyPatch, PolicyValues

logger = logging.getLogger("vllm.backhaul.policy")


class LivePolicy:
    """Assignment of one reference is atomic, so a hook that reads ``values`` once sees one revision only."""

    def __init__(self, initial: PolicyValues, unsupported_fields: tuple[str, ...] = ()) -> None:
        """``unsupported_fields``: what the installed vLLM can't follow; acked as such with every revision."""
        self.unsupported_fields = unsupported_fields
        self._current: tuple[int, PolicyValues] = (0, initial)
        self._applied = self._current

    @property
    def values(self) -> PolicyValues:
        return self._current[1]

    @property
    def revision(self) -> int:
        return self._current[0]

    def set(self, revision: int, values: PolicyValues) -> PolicyApplied:
        """In force for the next request at once. Returns what holds now, read back from where hooks read it."""
        previous = self._current
        self._current = (revision, values)
        if previous[1] != values:
            logger.info("Policy revision %d replaces %d.", revision, previous[0])
        return self.applied()

    def applied(self) -> PolicyApplied:
        revision, values = self._current
        return PolicyApplied(revision=revision, values=values, unsupported_fields=self.unsupported_fields)

    def take_change(self) -> tuple[PolicyValues, PolicyValues] | None:
        """(old, new) once after a change, for what only the scheduler thread may do: re-deadline, release."""
        current = self._current
        if current is self._applied:
            return None
        old, self._applied = self._applied[1], current
        return old, current[1]


def for_request(values: PolicyValues, patch: PolicyPatch | None) -> PolicyValues:
    """The snapshot that one request uses: the engine's, narrowed by the tenant's and session's signed patch."""
    return values if patch is None else patch.apply_to(values)
