"""Members that no client may set.

They name engines, other requests or KV blocks, or rank one client's requests over another's. vLLM 0.32 ignores unknown
members, but reads all of these at the top of a request, and those of ``vllm_xargs`` as a sequence's extra arguments.
"""

import msgspec
import orjson

from connector.router.errors import bad_request
from connector.router.requests.members import Fields, value_of

STRIPPED = frozenset(
    (
        "kv_transfer_params",
        "ec_transfer_params",
        "cache_salt",
        "priority",
        "request_id",
        "session_id",
        "data_parallel_rank",
        "conversation_id",
        "kv_cache_report_mode",
    )
)

NESTED = ("vllm_xargs", "extra_body", "extra_args")
"""Members in which clients' libraries put what they don't know, searched at every depth."""


def strip(fields: Fields) -> None:
    """Removes them in place; what holds none of them keeps the client's bytes."""
    for name in STRIPPED:
        fields.pop(name, None)
    for name in NESTED:
        if name in fields:
            value = value_of(fields, name)
            if _strip_within(value):
                fields[name] = _encoded(name, value)


def _encoded(name: str, value: object) -> msgspec.Raw:
    try:
        return msgspec.Raw(orjson.dumps(value))
    except orjson.JSONEncodeError:
        raise bad_request(f"'{name}' is nested too deeply.", name) from None


def _strip_within(value: object) -> bool:
    """True if anything went. Without recursion: JSON may nest deeper than Python calls."""
    found, waiting = False, [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, list):
            waiting.extend(one)
        elif isinstance(one, dict):
            for name in STRIPPED & one.keys():
                del one[name]
                found = True
            waiting.extend(one.values())
    return found
