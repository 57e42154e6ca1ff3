"""Lets NIXL answer its peers while the engine takes no steps: on CPU NIXL's own progress thread is off."""

import logging
import threading
import time

from connector.engine import guards
from connector.engine.nixl_agent import FencedNixlAgent

logger = logging.getLogger("vllm.backhaul.progress")

SERVING_POLL_SECONDS = 0.0002
FAILED_PAUSE_SECONDS = 1.0


class IdleProgress:
    """A daemon thread that polls every ``poll_ms``, and faster while a peer has announced a READ."""

    def __init__(self, agent: FencedNixlAgent, poll_ms: float) -> None:
        self._agent = agent
        self._idle_seconds = poll_ms / 1e3
        self.last_step_at = time.perf_counter()

    def start(self) -> None:
        if self._idle_seconds > 0:
            threading.Thread(target=self._run, name="backhaul-progress", daemon=True).start()

    def _run(self) -> None:
        while True:
            pause = self.run_once()
            time.sleep(pause)

    def _after_failure(self) -> float:
        return FAILED_PAUSE_SECONDS

    @guards.contained(_after_failure)
    def run_once(self) -> float:
        """Polls if it is due; returns how long to pause."""
        is_serving = self._agent.is_serving
        if is_serving or time.perf_counter() - self.last_step_at >= self._idle_seconds:
            self._agent.progress()
        return SERVING_POLL_SECONDS if self._agent.is_serving else self._idle_seconds
