"""An open page's side of ``/ws/dashboard/``: a real websocket with the session cookie of a logged-in user."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.sessions.backends.db import SessionStore
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin

from controlplane.accounts.models import User

FRAME_SECONDS = 10.0

Frame = dict[str, Any]


def log_in(user: User) -> str:
    """The session key of a new login."""
    session = SessionStore()
    session[SESSION_KEY] = str(user.pk)
    session[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
    session[HASH_SESSION_KEY] = user.get_session_auth_hash()
    session.save()
    assert session.session_key
    return session.session_key


class OpenPage:
    """Confirms each frame as the real page does, unless told not to."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.is_confirming = True

    def send(self, message: object) -> None:
        self.socket.send(message if isinstance(message, str) else json.dumps(message))

    def next_frame(self, timeout: float = FRAME_SECONDS) -> Frame:
        frame: Frame = json.loads(self.socket.recv(timeout))
        if self.is_confirming:
            self.confirm(frame)
        return frame

    def confirm(self, frame: Frame) -> None:
        self.send({"type": "seen", "sequence": frame["sequence"]})

    def frame_with(self, wanted: Callable[[Frame], object]) -> Frame:
        """The next frame that ``wanted`` holds for."""
        deadline = time.monotonic() + FRAME_SECONDS
        while time.monotonic() < deadline:
            frame = self.next_frame()
            if wanted(frame):
                return frame
        raise AssertionError("no such frame arrived")


@contextmanager
def opened_page(ws_url: str, session_key: str | None, *, origin: str | None = "own") -> Iterator[OpenPage]:
    """``origin``: ``own`` is the server's, as a browser would send it."""
    headers = {"Cookie": f"sessionid={session_key}"} if session_key else {}
    sent_origin = Origin(ws_url.replace("ws://", "http://") if origin == "own" else origin) if origin else None
    address = f"{ws_url}/ws/dashboard/"
    with connect(address, additional_headers=headers, origin=sent_origin, proxy=None) as socket:
        yield OpenPage(socket)
