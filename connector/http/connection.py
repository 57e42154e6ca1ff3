"""One client's connection: its requests are answered one after the other, and it is noticed at once that it left."""

import asyncio
import logging
import math
import time
from collections import deque
from typing import TYPE_CHECKING, cast

from connector.http.intake import Intake
from connector.http.messages import Request, Response

if TYPE_CHECKING:
    from connector.http.relay import Relay
    from connector.http.server import HttpServer

CLOSE = b"connection: close\r\n"
KEEP_ALIVE = b"connection: keep-alive\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

MAX_AHEAD_BYTES = 64 * 1024
"""A client that sends this much ahead isn't read from until its turn; till then it isn't noticed when it leaves."""

log = logging.getLogger(__name__)


class Connection(asyncio.Protocol):
    """``waiting``: requests not yet answered, in order, the last of them maybe not whole.

    ``deadline`` is when the client must have done what is awaited of it, in monotonic seconds; a sweep looks at it.
    """

    def __init__(self, server: "HttpServer") -> None:
        self.waiting: deque[Request] = deque()
        self.relay: Relay | None = None
        self.is_paused = False
        self.deadline = math.inf
        self._server = server
        self._service = server.service
        self._limits = server.limits
        self._intake = Intake(self, server.service, server.limits)
        self._transport: asyncio.Transport | None = None
        self._current: Request | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_deaf = False
        self._is_held_back = False

    @property
    def is_resting(self) -> bool:
        """Everything that came is answered."""
        return self._current is None and not self.waiting

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._server.connections.add(self)
        self.deadline = time.monotonic() + self._limits.idle_seconds

    def connection_lost(self, exc: Exception | None) -> None:
        """The client left: whatever is done for it ends now."""
        self._server.connections.discard(self)
        self._transport = self._current = None
        self._intake.close()
        self.waiting.clear()
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        if self._is_deaf:
            return
        refusal = self._intake.feed(data)
        if refusal is not None:
            self._reject(refusal)
            return
        self._advance()
        if self.waiting and self._current is not None:
            self._hold_back()

    def pause_writing(self) -> None:
        self.is_paused = True
        if self.relay is not None:
            self.relay.hold()

    def resume_writing(self) -> None:
        self.is_paused = False
        if self.relay is not None:
            self.relay.go_on()

    def write(self, data: bytes) -> None:
        """Sends bytes of the current answer; nothing once the client has left."""
        if self._transport is not None:
            self._transport.write(data)

    def invite(self, request: Request) -> None:
        """Tells the client to send its body, unless another answer is on its way to it."""
        if self._current is None and len(self.waiting) == 1:
            self.write(CONTINUE)

    def cut(self, *, is_marked: bool) -> None:
        """Ends the connection within an answer. One that only its end would mark (not ``is_marked``) is reset."""
        if self._transport is None:
            return
        self._is_deaf = True
        if is_marked:
            self._transport.close()
            self.deadline = time.monotonic() + self._limits.flush_seconds
        else:
            self._transport.abort()

    def keeps_alive(self, request: Request) -> bool:
        return request.is_keep_alive and not self._server.is_ending

    def end(self) -> asyncio.Task[None] | None:
        """Gives the client up now; returns what is done for it, so that its end can be awaited."""
        if self._transport is not None:
            self._transport.abort()
        if self._task is not None:
            self._task.cancel()
        return self._task

    def expire(self) -> None:
        """The deadline has passed. A client whose answer is being made is left alone until it is out."""
        if self._transport is None:
            return
        if self._is_deaf:
            self._transport.abort()
        elif self._current is None:
            if self._intake.is_amid_request:
                self._reject(self._intake.expired())
            else:
                self._transport.close()

    def _hold_back(self) -> None:
        if self._transport is not None and sum(request.size for request in self.waiting) > MAX_AHEAD_BYTES:
            self._is_held_back = True
            self._transport.pause_reading()

    def _reject(self, answer: Response) -> None:
        """What follows on this connection can't be told apart any more: this answer is its last."""
        self._is_deaf = True
        request = self._intake.receiving
        if request is None:
            request = Request(self)
            self.waiting.append(request)
        elif request not in self.waiting:
            self._finish_sending()
            return
        request.refusal = answer
        request.is_keep_alive = False
        self._advance()

    def _advance(self) -> None:
        while self._current is None and self.waiting and self._transport is not None:
            request = self.waiting[0]
            if request.refusal is None and not request.is_whole:
                return
            self.waiting.popleft()
            self._current = request
            if request.refusal is not None:
                self._answer(request, request.refusal)
            else:
                self._task = asyncio.get_running_loop().create_task(self._serve(request))

    async def _serve(self, request: Request) -> None:
        try:
            response = await self._service.answer(request)
        except Exception:
            log.exception("event=answer_failed method=%s", request.method)
            self.cut(is_marked=False)
            return
        self._task = None
        if response is not None:
            self._answer(request, response)
        else:
            self._go_on(request)
        self._advance()

    def _answer(self, request: Request, response: Response) -> None:
        request.is_answered = True
        if response.close:
            request.is_keep_alive = False
        line = b"" if request.version == "1.1" else KEEP_ALIVE
        line = line if self.keeps_alive(request) else CLOSE
        self.write(response.render(line, with_body=request.method != "HEAD"))
        self._go_on(request)

    def _go_on(self, request: Request) -> None:
        """The answer is out: the connection takes the next request, or ends."""
        self._current = None
        if self._transport is None:
            return
        if not self.keeps_alive(request):
            self._finish_sending()
        elif self._is_held_back:
            self._is_held_back = False
            self._transport.resume_reading()
            self.deadline = time.monotonic() + self._limits.body_seconds
        elif not self.waiting and not self._intake.is_amid_request:
            self.deadline = time.monotonic() + self._limits.idle_seconds

    def _finish_sending(self) -> None:
        """Ends the connection so that its last answer isn't lost to a reset while the client still sends."""
        transport = self._transport
        is_silent = not self._intake.is_amid_request and not self._is_deaf and not self.waiting
        self._is_deaf = True
        self.waiting.clear()
        if transport is None:
            return
        if is_silent:
            transport.close()
            self.deadline = time.monotonic() + self._limits.flush_seconds
            return
        transport.resume_reading()
        if transport.can_write_eof():
            transport.write_eof()
        self.deadline = time.monotonic() + self._limits.linger_seconds
