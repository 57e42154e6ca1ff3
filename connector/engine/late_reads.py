"""Data READs that outlived their deadline: none can be cancelled, so each is kept until it has really ended."""

import logging
from typing import Any

from connector.engine.nixl_agent import FencedNixlAgent
from connector.engine.pulls import Pull, is_verdict
from connector.protocol import TransferOutcome

logger = logging.getLogger("vllm.backhaul.late")


class LateReads:
    """Worker side of the quarantine; the scheduler holds the destination blocks meanwhile.

    ``notify``: whether a source is told once its late READ is over. P keeps a handoff for this one reader only; a read
    of D's lease is counted, and this one was none.
    """

    def __init__(self, agent: FencedNixlAgent, *, notify: bool) -> None:
        self._agent = agent
        self._notify = notify
        self._open: list[Pull] = []
        self._meta_of: dict[str, Any] = {}

    def __len__(self) -> int:
        return len(self._open)

    @property
    def request_ids(self) -> set[str]:
        return {pull.context.request_id for pull in self._open}

    @property
    def metas(self) -> dict[str, Any]:
        """vLLM's facts of the pulls, by request: what names the peers that must stay connected."""
        return self._meta_of

    def add(self, pull: Pull, meta: Any) -> bool:
        """Whether the READ goes on; one that has ended by now is done with at once."""
        if self._has_ended(pull):
            return False
        self._open.append(pull)
        self._meta_of[pull.context.request_id] = meta
        return True

    def poll(self) -> list[str]:
        """Requests none of whose READs go on any more, once each."""
        if not self._open:
            return []
        before = self.request_ids
        self._open = [pull for pull in self._open if not self._has_ended(pull)]
        ended = sorted(before - self.request_ids)
        for request_id in ended:
            del self._meta_of[request_id]
        return ended

    def _has_ended(self, pull: Pull) -> bool:
        """Only then may the destination blocks be used again."""
        state = self.state_of(pull.handle)
        if state == "PROC":
            return False
        try:
            self._agent.release_xfer_handle(pull.handle)
        except Exception as error:  # noqa: BLE001 - NIXL raises untyped errors
            # A failed release does not prove that the backend stopped writing. Said once; this is asked at every step.
            level = logging.DEBUG if pull.was_found_ended else logging.WARNING
            logger.log(level, "Late READ of %s can't be released yet: %s", pull.context.request_id, error)
            pull.was_found_ended = True
            return False
        if self._notify and state == "DONE" and pull.outcome is not TransferOutcome.COMPLETED:
            self._agent.notify_source(pull)
        return True

    def state_of(self, handle: Any) -> str:
        """NIXL raises, at every call, for a READ whose source has died: that one has ended too."""
        try:
            return str(self._agent.check_xfer_state(handle))
        except Exception as error:  # noqa: BLE001 - NIXL raises untyped errors
            logger.debug("A READ can't be looked at, or has failed: %s", error)
            return "ERR" if is_verdict(error) else "PROC"
