"""Which headers go on to an engine and back to the client (RFC 9110, section 7.6.1)."""

import msgspec

from connector.http import Headers, Pairs
from connector.http.headers import render

HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)

OWN_IN_REQUESTS = frozenset(
    (
        b"host",
        b"content-length",
        b"content-encoding",
        b"content-type",
        b"expect",
        b"authorization",
        b"x-api-key",
        b"x-request-id",
        b"x-session-id",
        b"x-data-parallel-rank",
        b"x-vllm-priority",
        b"traceparent",
        b"tracestate",
    )
)
"""Set by the router itself, or not for a client to set: vLLM 0.32 reads rank, priority, session and request id."""

_NOT_TO_ENGINE = HOP_BY_HOP | OWN_IN_REQUESTS

_JSON = b"content-type: application/json\r\n"
_IDENTITY = b"accept-encoding: identity\r\n"


class EndToEnd(msgspec.Struct, frozen=True):
    """The client's end-to-end fields as an engine gets them: decode replies to the client, prefill to the router."""

    to_prefill: bytes
    to_decode: bytes


def headers_to_engine(client: Headers) -> EndToEnd:
    """The client's end-to-end headers without those that the router sets."""
    named = _named_by_connection(client)
    kept = [pair for pair in client.pairs if pair[0] not in _NOT_TO_ENGINE and pair[0] not in named]
    codings = [pair for pair in kept if pair[0] == b"accept-encoding"]
    plain = _JSON + render([pair for pair in kept if pair[0] != b"accept-encoding"] if codings else kept)
    return EndToEnd(plain + _IDENTITY, plain + render(codings))


def headers_to_client(engine: Headers) -> Pairs:
    """The engine's end-to-end headers; ``Content-Length`` stays, since the body does."""
    named = _named_by_connection(engine)
    return [pair for pair in engine.pairs if pair[0] not in HOP_BY_HOP and pair[0] not in named]


def _named_by_connection(headers: Headers) -> frozenset[bytes]:
    connection = headers.raw(b"connection")
    if connection is None:
        return frozenset()
    return frozenset(name.strip() for name in connection.lower().split(b","))
