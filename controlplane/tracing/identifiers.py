"""Trace and span ids between OTLP's bytes, hexadecimal text and the columns' numbers; pure."""

from uuid import UUID

TRACE_ID_BYTES = 16
SPAN_ID_BYTES = 8


def is_trace_id(value: bytes) -> bool:
    return len(value) == TRACE_ID_BYTES and any(value)


def is_span_id(value: bytes) -> bool:
    return len(value) == SPAN_ID_BYTES and any(value)


def span_number(value: bytes) -> int:
    """Eight bytes as the signed integer that fits Postgres' bigint."""
    return int.from_bytes(value, signed=True)


def span_hex(number: int) -> str:
    return number.to_bytes(SPAN_ID_BYTES, signed=True).hex()


def trace_hex(trace_id: UUID) -> str:
    return trace_id.hex
