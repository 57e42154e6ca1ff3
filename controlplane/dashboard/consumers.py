"""``/ws/dashboard/``: a whole picture at connect, then what changed, at the pace that the page can take.

The page confirms each frame (``seen``). While too many are unconfirmed nothing is read and nothing is sent; changes
collect as ids of bounded number. When the page has caught up it gets a fresh snapshot in place of what it missed. That
holds whatever servers and proxies buffer in between, which a socket's own back-pressure doesn't.
"""

import asyncio
import contextlib
import logging
import time
from typing import Annotated, Any

import msgspec
from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer

from controlplane.dashboard import selectors
from controlplane.dashboard.frames import encode_heartbeat, encode_snapshot, encode_update
from controlplane.dashboard.logins import is_login_valid
from controlplane.dashboard.pace import Pace
from controlplane.dashboard.pending import PendingChanges
from controlplane.notify import DASHBOARD_GROUP

logger = logging.getLogger(__name__)

CLOSE_INTERNAL_ERROR = 1011
CLOSE_BAD_MESSAGE = 4400
CLOSE_UNAUTHENTICATED = 4401
CLOSE_TOO_SLOW = 4408

MIN_INTERVAL_SECONDS = 0.25
HEARTBEAT_SECONDS = 2.0
LOGIN_CHECK_SECONDS = 5.0
REFRESH_SECONDS = 60.0
GIVE_UP_SECONDS = 30.0
MAX_MESSAGE_CHARS = 1024
MAX_OPENED_SESSIONS = 20


class Seen(msgspec.Struct, frozen=True, tag_field="type", tag="seen"):
    """The page has taken everything up to this frame."""

    sequence: int


class ShowTurns(msgspec.Struct, frozen=True, tag_field="type", tag="show_turns"):
    """The page opened a session: its latest turns come with the next update."""

    session: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class DashboardConsumer(AsyncWebsocketConsumer):  # type: ignore[misc]
    """One open page."""

    async def connect(self) -> None:
        self._pending = PendingChanges()
        self._opened_sessions: set[str] = set()
        self._wake = asyncio.Event()
        self._pace = Pace()
        self._caught_up = asyncio.Event()
        self._num_dropped = 0
        self._snapshot_at = 0.0
        self._shown_engines: frozenset[str] | None = None
        self._sender: asyncio.Task[None] | None = None
        await self.accept()
        if not self.scope["user"].is_authenticated:
            await self.close(CLOSE_UNAUTHENTICATED)
            return
        # Before the first read: a change in between is then read twice rather than lost.
        await self.channel_layer.group_add(DASHBOARD_GROUP, self.channel_name)
        self._sender = asyncio.create_task(self._send_until_closed())

    async def disconnect(self, code: int) -> None:
        await self.channel_layer.group_discard(DASHBOARD_GROUP, self.channel_name)
        if self._sender:
            self._sender.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sender
            logger.info("event=dashboard_closed code=%s dropped_changes=%d", code, self._num_dropped)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        try:
            if text_data is None or len(text_data) > MAX_MESSAGE_CHARS:
                raise ValueError("not a short text message")
            message = msgspec.json.decode(text_data, type=Seen | ShowTurns)
            if isinstance(message, ShowTurns):
                self._open_session(message.session)
                return
            self._pace.confirm(message.sequence)
        except ValueError as error:
            logger.warning("event=dashboard_message_refused error=%r", str(error))
            await self.close(CLOSE_BAD_MESSAGE)
            return
        if self._pace.num_in_flight == 0:
            self._caught_up.set()

    async def dashboard_changed(self, message: dict[str, Any]) -> None:
        """From ``notify.changed``, by the channel layer. Never waits: a busy socket must not stop its inbox."""
        ids = message["ids"]
        if message["kind"] in ("engine", "agent") and self._shown_engines is not None:
            ids = [name for name in ids if name in self._shown_engines]
        if ids:
            self._pending.add(message["kind"], ids)
            self._wake.set()

    def _open_session(self, session_id: str) -> None:
        if len(self._opened_sessions) >= MAX_OPENED_SESSIONS:
            raise ValueError("opens too many sessions at once")
        self._opened_sessions.add(session_id)
        self._wake.set()

    async def _send_until_closed(self) -> None:
        try:
            await self._send_frames()
        except OSError as error:
            # The page left in the middle of a frame; its disconnect message is on the way.
            logger.info("event=dashboard_left error=%r", str(error))
        except Exception:
            # The page connects again and starts from a snapshot; whatever failed is in the log once per attempt.
            logger.exception("event=dashboard_failed")
            with contextlib.suppress(OSError):
                await self.close(CLOSE_INTERNAL_ERROR)

    async def _send_frames(self) -> None:
        await self._send_snapshot("connect")
        login_checked_at = time.monotonic()
        while True:
            await asyncio.sleep(MIN_INTERVAL_SECONDS)
            if time.monotonic() - login_checked_at > LOGIN_CHECK_SECONDS:
                if not await _read(is_login_valid, self.scope["session"].session_key):
                    await self.close(CLOSE_UNAUTHENTICATED)
                    return
                login_checked_at = time.monotonic()
            if not await self._send_next():
                await self.close(CLOSE_TOO_SLOW)
                return

    async def _send_next(self) -> bool:
        """One frame; False when the page has stopped confirming for good."""
        if self._pace.is_behind:
            if not await self._catches_up():
                return False
            await self._send_snapshot("resync")
        elif time.monotonic() - self._snapshot_at > REFRESH_SECONDS:
            # The channel layer delivers at most once: what it lost would stay wrong on the page for ever.
            await self._send_snapshot("refresh")
        else:
            await self._send_changes()
        return True

    async def _catches_up(self) -> bool:
        self._caught_up.clear()
        if self._pace.num_in_flight == 0:
            return True
        try:
            await asyncio.wait_for(self._caught_up.wait(), GIVE_UP_SECONDS)
        except TimeoutError:
            return False
        return True

    async def _send_snapshot(self, reason: str) -> None:
        self._num_dropped += self._pending.num_marks
        self._pending.take()
        self._snapshot_at = time.monotonic()
        now = selectors.server_now()
        rows, truncated = await _read(selectors.snapshot_rows, now)
        names = frozenset(engine.name for engine in rows.engines or ())
        self._shown_engines = names if "engines" in truncated else None
        frame = encode_snapshot(
            rows,
            sequence=self._pace.next_sequence(),
            server_now=now,
            reason=reason,
            num_dropped=self._num_dropped,
            truncated=truncated,
        )
        await self.send(frame)

    async def _send_changes(self) -> None:
        """Waits for a change, at most until a heartbeat is due; sends one frame."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), HEARTBEAT_SECONDS)
        self._wake.clear()
        changes, opened = self._pending.take(), frozenset(self._opened_sessions)
        self._opened_sessions.clear()
        now = selectors.server_now()
        if changes or opened:
            rows = await _read(selectors.changed_rows, changes, opened, now)
            await self.send(encode_update(rows, sequence=self._pace.next_sequence(), server_now=now))
        else:
            await self.send(encode_heartbeat(sequence=self._pace.next_sequence(), server_now=now))


async def _read(selector: Any, *arguments: Any) -> Any:
    """Off the one thread that Django keeps for synchronous code: a slow page must not hold up the agents' sockets."""
    return await database_sync_to_async(selector, thread_sensitive=False)(*arguments)
