"""A port that tells of this process alone: its metrics and its health, without a key."""

from connector.http import Request, Response
from connector.router.endpoints import Doors
from connector.router.errors import ApiError

PATHS = ("/metrics", "/healthz", "/readyz")


class OwnDoors:
    """Nothing else is served here, so that it may be open to a network that clients aren't in."""

    def __init__(self, doors: Doors) -> None:
        self._doors = doors

    def admit(self, http: Request) -> Response | None:
        if http.path not in PATHS:
            error = ApiError(404, f"Only {', '.join(PATHS)} are served at this port.", code="unknown_url")
            return error.to_response()
        return self._doors.admit(http)

    def refuse(self, status: int, message: str, http: Request | None = None) -> Response:
        return self._doors.refuse(status, message, http)

    async def answer(self, http: Request) -> Response | None:
        if http.path == "/metrics":
            return self._doors.metrics(http)
        return await self._doors.answer(http)
