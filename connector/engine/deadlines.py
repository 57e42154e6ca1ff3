"""When each pull of a worker began, handshake included, and how long it may take."""

import time


class PullDeadlines:
    """A request's own deadline, from its signed policy, holds for it; without one the engine's of now does."""

    def __init__(self) -> None:
        self._started_at: dict[str, float] = {}
        self._own_seconds: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._started_at)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._started_at or request_id in self._own_seconds

    def start(self, request_id: str, own_seconds: float | None) -> None:
        self._started_at[request_id] = time.perf_counter()
        if own_seconds is not None:
            self._own_seconds[request_id] = own_seconds

    def seconds(self, request_id: str, engine_seconds: float) -> float:
        return self._own_seconds.get(request_id, engine_seconds)

    def waited_ms(self, request_id: str) -> float:
        now = time.perf_counter()
        return (now - self._started_at.get(request_id, now)) * 1e3

    def passed(self, engine_seconds: float) -> list[str]:
        """Requests whose pull began longer ago than it may take."""
        now = time.perf_counter()
        return [
            request_id
            for request_id, started_at in self._started_at.items()
            if now - started_at > self.seconds(request_id, engine_seconds)
        ]

    def end(self, request_id: str) -> None:
        self._started_at.pop(request_id, None)
        self._own_seconds.pop(request_id, None)
