"""OTLP attribute values as bounded JSON without conversation content; pure."""

import math
from collections.abc import Iterable
from itertools import islice
from typing import TypeAlias

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

MAX_ATTRIBUTES = 64
MAX_KEY_CHARS = 128
MAX_TEXT_CHARS = 1024
MAX_ITEMS = 32
MAX_DEPTH = 3
MAX_BYTES_SHOWN = 64

CONTENT_KEYS = frozenset(
    {
        "gen_ai.completion",
        "gen_ai.event.content",
        "gen_ai.input.messages",
        "gen_ai.output.messages",
        "gen_ai.prompt",
        "gen_ai.system_instructions",
        "gen_ai.tool.call.arguments",
        "gen_ai.tool.call.result",
        "gen_ai.tool.definitions",
        "input.value",
        "output.value",
    }
)
"""Keys under which instrumentations put what people said: never stored."""
CONTENT_PREFIXES = ("gen_ai.completion.", "gen_ai.prompt.", "llm.input_messages", "llm.output_messages", "llm.prompts")
CONTENT_EVENTS = ("gen_ai.content.", "gen_ai.choice")


def is_content_key(key: str) -> bool:
    return key in CONTENT_KEYS or key.startswith(CONTENT_PREFIXES)


def is_content_event(name: str) -> bool:
    return name.startswith(CONTENT_EVENTS) or (name.startswith("gen_ai.") and name.endswith(".message"))


def attributes_of(pairs: Iterable[KeyValue]) -> dict[str, Json]:
    """The first attributes up to the limit, without conversation content."""
    kept = (pair for pair in pairs if pair.key and not is_content_key(pair.key))
    return {clean_text(pair.key, MAX_KEY_CHARS): json_of(pair.value) for pair in islice(kept, MAX_ATTRIBUTES)}


def json_of(value: AnyValue, depth: int = 0) -> Json:
    """A value with texts cut, lists shortened, nesting flattened to ``None`` beyond the limits."""
    match value.WhichOneof("value"):
        case "string_value":
            return clean_text(value.string_value, MAX_TEXT_CHARS)
        case "int_value":
            return int(value.int_value)
        case "bool_value":
            return bool(value.bool_value)
        case "double_value":
            # JSON knows neither NaN nor infinity.
            return value.double_value if math.isfinite(value.double_value) else str(value.double_value)
        case "bytes_value":
            return value.bytes_value[:MAX_BYTES_SHOWN].hex()
        case "array_value" if depth < MAX_DEPTH:
            return [json_of(item, depth + 1) for item in value.array_value.values[:MAX_ITEMS]]
        case "kvlist_value" if depth < MAX_DEPTH:
            return _object_of(value.kvlist_value.values[:MAX_ITEMS], depth)
    return None


def _object_of(pairs: Iterable[KeyValue], depth: int) -> dict[str, Json]:
    kept = [pair for pair in pairs if not is_content_key(pair.key)]
    return {clean_text(pair.key, MAX_KEY_CHARS): json_of(pair.value, depth + 1) for pair in kept}


def clean_text(value: str, max_chars: int) -> str:
    """Cut, and without NUL, which Postgres can't store."""
    return value[:max_chars].replace("\0", "")
