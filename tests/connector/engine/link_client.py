"""An agent's end of the engine link, one call at a time, with a deadline on every wait."""

import select
import socket
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import msgspec

from connector.framing import FrameDecoder, encode_frame
from connector.protocol import EngineToAgent

DEADLINE_SECONDS = 10.0

M = TypeVar("M")


class LinkClient:
    """Connected on construction; a context manager, so that no socket outlives its test."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(DEADLINE_SECONDS)
        self._decoder: FrameDecoder[EngineToAgent] = FrameDecoder(EngineToAgent)
        self._received: list[EngineToAgent] = []
        try:
            self._socket.connect(str(path))
        except OSError:
            self._socket.close()
            raise

    def __enter__(self) -> "LinkClient":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def send(self, message: msgspec.Struct) -> None:
        self._socket.sendall(encode_frame(message))

    def send_bytes(self, data: bytes) -> None:
        self._socket.sendall(data)

    def receive(self, kind: type[M]) -> M:
        """The next message, which must be of this kind."""
        while not self._received:
            data = self._socket.recv(1 << 20)
            assert data, "the engine closed the connection"
            self._received += self._decoder.feed(data)
        message = self._received.pop(0)
        assert isinstance(message, kind), message
        return message

    def read_to_end(self) -> list[EngineToAgent]:
        """All that still arrives until the engine closes the connection."""
        try:
            while data := self._socket.recv(1 << 20):
                self._received += self._decoder.feed(data)
        except ConnectionResetError:
            pass  # closed by the engine with bytes of ours unread
        messages, self._received = self._received, []
        return messages

    def wait_until_closed(self) -> None:
        """Notices the close even while unread bytes wait; reads nothing."""
        poller = select.poll()
        poller.register(self._socket, select.POLLHUP)
        assert poller.poll(DEADLINE_SECONDS * 1e3), "the engine keeps the connection"
