"""Encodes spans as OTLP's protobuf (opentelemetry-proto 1.x, ``ExportTraceServiceRequest``), straight to bytes.

The SDK's way from a span to its bytes costs more than the rest of a turn. Here nearly all of a span is looked up: names
with their lengths, and whole attributes whose values come from a small set.
"""

import struct
from collections.abc import Iterable, Mapping
from functools import lru_cache

from opentelemetry.sdk.resources import Resource
from opentelemetry.trace import SpanKind
from opentelemetry.util.types import AttributeValue

Value = str | int | float | bool
Attributes = Mapping[str, Value]

SPAN_ATTRIBUTE = 0x4A
RESOURCE_ATTRIBUTE = 0x0A

STATUS_ERROR = b"\x18\x02"

_IS_REMOTE_KNOWN = 0x100
_IS_REMOTE = 0x200

_MASK64 = (1 << 64) - 1
_MAX_KNOWN = 4_096
"""Attributes that are kept encoded; past that the rest is encoded each time."""

SHORT = 64

OF_ONE_TURN = ("_id", "_lease")
"""How names end whose texts never come twice."""

_IDS = struct.Struct(">2sQQ2sQ")
_PARENT = struct.Struct(">2sQ")
_TIMES = struct.Struct("<cQcQ")
_FLAGS = struct.Struct("<2sI")
_LINK = struct.Struct(">2sQQ2sQ")
_DOUBLE = struct.Struct("<d")

_known_texts: dict[tuple[str, str], bytes] = {}
_known_counts: dict[tuple[str, int], bytes] = {}


def encode_request(resource: Resource, scope_name: str, spans: Iterable[bytes]) -> bytes:
    """The body of ``POST /v1/traces`` for encoded spans of one resource and scope."""
    described = _field(0x0A, b"".join(_field(RESOURCE_ATTRIBUTE, _pair(*item)) for item in resource.attributes.items()))
    named = _field(0x0A, _field(0x0A, scope_name.encode()))
    return _field(0x0A, described + _field(0x12, named + b"".join(spans)))


def encode_span(
    trace_id: int,
    span_id: int,
    parent_id: int,
    state: bytes,
    flags: int,
    name: str,
    kind: SpanKind,
    start_ns: int,
    end_ns: int,
    attributes: Attributes,
    link: tuple[int, int] | None,
    error: str,
) -> bytes:
    """One ``Span`` as a field of ``ScopeSpans``. ``state`` is the W3C trace state; ``error`` makes it a failed span."""
    parts = [_IDS.pack(b"\x0a\x10", trace_id >> 64, trace_id & _MASK64, b"\x12\x08", span_id)]
    if state:
        parts.append(_field(0x1A, state))
    flags |= _IS_REMOTE_KNOWN
    if parent_id:
        parts.append(_PARENT.pack(b"\x22\x08", parent_id))
        flags |= _IS_REMOTE if kind is SpanKind.SERVER else 0
    parts.append(_title(name, kind))
    parts.append(_TIMES.pack(b"\x39", start_ns, b"\x41", end_ns))
    parts.extend(map(_attribute, attributes.items()))
    if link is not None:
        parts.append(_link(*link))
    parts.append(_field(0x7A, _field(0x12, error.encode(errors="replace")) + STATUS_ERROR) if error else b"\x7a\x00")
    parts.append(_FLAGS.pack(b"\x85\x01", flags))
    return _field(0x12, b"".join(parts))


def _attribute(item: tuple[str, Value]) -> bytes:
    """A ``KeyValue`` of a span. Whole numbers and truth values are told apart before anything is looked up."""
    name, value = item
    kind = type(value)
    if kind is str:
        return _known_texts.get(item) or _text(name, value)  # type: ignore[arg-type]
    if kind is int:
        return _known_counts.get(item) or _count(name, value)  # type: ignore[arg-type]
    if kind is float:
        return _float_head(name) + _DOUBLE.pack(value)
    return _field(SPAN_ATTRIBUTE, _pair(name, value))


def _text(name: str, value: str) -> bytes:
    data = value.encode(errors="replace")
    if len(data) >= SHORT:
        return _field(SPAN_ATTRIBUTE, _pair(name, value))
    encoded = _text_head(name, len(data)) + data
    if not name.endswith(OF_ONE_TURN) and len(_known_texts) < _MAX_KNOWN:
        _known_texts[name, value] = encoded
    return encoded


def _count(name: str, value: int) -> bytes:
    encoded = _field(SPAN_ATTRIBUTE, _pair(name, value))
    if 0 <= value < 65_536 and len(_known_counts) < _MAX_KNOWN:
        _known_counts[name, value] = encoded
    return encoded


@lru_cache(maxsize=_MAX_KNOWN)
def _text_head(name: str, length: int) -> bytes:
    """All of an attribute but its text of less than 64 bytes."""
    key = _key(name)
    return _field(SPAN_ATTRIBUTE, key + bytes((0x12, length + 2, 0x0A, length)) + b"\0" * length)[: -length or None]


@lru_cache(maxsize=256)
def _float_head(name: str) -> bytes:
    return _field(SPAN_ATTRIBUTE, _pair(name, 0.5))[: -_DOUBLE.size]


@lru_cache(maxsize=256)
def _title(name: str, kind: SpanKind) -> bytes:
    """Name and kind; OTLP's numbers for kinds are the SDK's plus one."""
    return _field(0x2A, name.encode()) + bytes((0x30, kind.value + 1))


@lru_cache(maxsize=256)
def _key(name: str) -> bytes:
    return _field(0x0A, name.encode())


def _link(trace_id: int, span_id: int) -> bytes:
    ids = _LINK.pack(b"\x0a\x10", trace_id >> 64, trace_id & _MASK64, b"\x12\x08", span_id)
    return _field(0x6A, ids + _LINK_FLAGS)


_LINK_FLAGS = b"\x35" + struct.pack("<I", 1 | _IS_REMOTE_KNOWN | _IS_REMOTE)


def _pair(name: str, value: AttributeValue) -> bytes:
    return _key(name) + _field(0x12, _value(value))


def _value(value: AttributeValue) -> bytes:
    if isinstance(value, str):
        return _field(0x0A, value.encode(errors="replace"))
    if isinstance(value, bool):
        return b"\x10\x01" if value else b"\x10\x00"
    if isinstance(value, int):
        return b"\x18" + _varint(value & _MASK64)
    if isinstance(value, float):
        return b"\x21" + _DOUBLE.pack(value)
    raise TypeError(f"attributes of type {type(value).__name__} are not used here")


def _field(tag: int, data: bytes) -> bytes:
    length = len(data)
    if length < 0x80:
        return b"%c%c%b" % (tag, length, data)
    return b"%c%b%b" % (tag, _varint(length), data)


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
