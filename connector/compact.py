"""Texts as bytes, lossless: hexadecimal ones and UUIDs take half their length, since leases keep many of them."""

import re
from collections.abc import Iterable, Iterator

_HEX = re.compile(r"(?:[0-9a-f]{2})+")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_PLAIN, _AS_HEX, _AS_UUID = 0, 1, 2
_LONG = 63
"""In a head byte: the length follows in four bytes."""


def pack_texts(texts: Iterable[str]) -> bytes:
    """One head byte (kind, length) and the content of each; a UUID costs 17 bytes."""
    return b"".join(map(_pack, texts))


def unpack_texts(packed: bytes | bytearray | memoryview) -> Iterator[str]:
    """The texts in order; lazy, so that the first few cost no more than themselves."""
    data = memoryview(packed)
    position = 0
    while position < len(data):
        kind, length = divmod(data[position], 64)
        position += 1
        if length == _LONG:
            length = int.from_bytes(data[position : position + 4], "little")
            position += 4
        yield _decode(kind, bytes(data[position : position + length]))
        position += length


def _pack(text: str) -> bytes:
    if _UUID.fullmatch(text):
        kind, content = _AS_UUID, bytes.fromhex(text.replace("-", ""))
    elif _HEX.fullmatch(text):
        kind, content = _AS_HEX, bytes.fromhex(text)
    else:
        kind, content = _PLAIN, text.encode()
    if len(content) < _LONG:
        return bytes((kind * 64 + len(content),)) + content
    return bytes((kind * 64 + _LONG,)) + len(content).to_bytes(4, "little") + content


def _decode(kind: int, content: bytes) -> str:
    if kind == _PLAIN:
        return content.decode()
    digits = content.hex()
    if kind == _AS_HEX:
        return digits
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
