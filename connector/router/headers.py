"""Which headers go on to an engine and back to the client (RFC 9110, section 7.6.1)."""

from collections.abc import Mapping

from multidict import CIMultiDict, CIMultiDictProxy

HOP_BY_HOP = frozenset(
    (
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    )
)

OWN_IN_REQUESTS = frozenset(
    (
        "host",
        "content-length",
        "content-encoding",
        "content-type",
        "expect",
        "authorization",
        "x-api-key",
        "x-request-id",
        "x-session-id",
        "x-data-parallel-rank",
        "x-vllm-priority",
        "traceparent",
        "tracestate",
    )
)
"""Set by the router itself, or not for a client to set: vLLM 0.32 reads rank, priority, session and request id."""

_NOT_TO_ENGINE = HOP_BY_HOP | OWN_IN_REQUESTS


def headers_to_engine(client: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    """The client's end-to-end headers without those that the router sets."""
    named = _named_by_connection(client)
    kept: CIMultiDict[str] = CIMultiDict()
    for name, value in client.items():
        lower = name.lower()
        if lower not in _NOT_TO_ENGINE and lower not in named:
            kept.add(name, value)
    kept["Content-Type"] = "application/json"
    return kept


def headers_to_client(engine: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    """The engine's end-to-end headers; ``Content-Length`` stays, since the body does."""
    named = _named_by_connection(engine)
    kept: CIMultiDict[str] = CIMultiDict()
    for name, value in engine.items():
        lower = name.lower()
        if lower not in HOP_BY_HOP and lower not in named:
            kept.add(name, value)
    if "Transfer-Encoding" in engine:
        kept.popall("Content-Length", None)
    return kept


def _named_by_connection(headers: Mapping[str, str]) -> frozenset[str]:
    connection = headers.get("Connection")
    if connection is None:
        return frozenset()
    return frozenset(name.strip().lower() for name in connection.split(","))
