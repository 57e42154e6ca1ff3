"""Frames of the engine link: a u32 big-endian length, then that many bytes of msgpack.

Shared by both ends of the unix socket, so that neither can drift. A stream that breaks a rule can't be resynchronised:
the reader closes the connection, and the hello of the next one starts afresh.
"""

from typing import Any, Generic, TypeVar

import msgspec

MAX_FRAME_BYTES = 16 * 1024 * 1024
"""Bounds what a peer can make us buffer; the largest message, a lease offer, stays under 5 MiB."""

HEADER_BYTES = 4

T = TypeVar("T")

_encoder = msgspec.msgpack.Encoder()


def encode_frame(message: msgspec.Struct) -> bytes:
    """One whole frame. Raises ``ValueError`` when the message would exceed ``MAX_FRAME_BYTES``."""
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise ValueError(f"a frame of {len(body)} bytes exceeds {MAX_FRAME_BYTES}")
    return len(body).to_bytes(HEADER_BYTES, "big") + body


class FrameDecoder(Generic[T]):
    """Turns a byte stream, cut anywhere, into the messages of one union; holds at most one incomplete frame.

    ``kind`` is the union of accepted messages. ``feed`` raises ``ValueError`` on an oversize, malformed or foreign
    frame, and again on every later call: the caller closes the connection.
    """

    def __init__(self, kind: Any) -> None:
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(kind)
        self._buffer = bytearray()
        self._fault: str | None = None

    def feed(self, data: bytes) -> list[T]:
        """Every message completed by ``data``, in order."""
        if self._fault is not None:
            raise ValueError(self._fault)
        self._buffer += data
        try:
            return self._drain()
        except ValueError as error:
            self._fault = str(error)
            self._buffer.clear()
            raise

    def _drain(self) -> list[T]:
        messages: list[T] = []
        position = 0
        while len(self._buffer) - position >= HEADER_BYTES:
            size = int.from_bytes(self._buffer[position : position + HEADER_BYTES], "big")
            if size > MAX_FRAME_BYTES:
                raise ValueError(f"a frame of {size} bytes exceeds {MAX_FRAME_BYTES}")
            start = position + HEADER_BYTES
            if len(self._buffer) - start < size:
                break
            messages.append(self._decode(bytes(self._buffer[start : start + size])))
            position = start + size
        del self._buffer[:position]
        return messages

    def _decode(self, body: bytes) -> T:
        try:
            return self._decoder.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"not a message of this socket: {error}") from error
