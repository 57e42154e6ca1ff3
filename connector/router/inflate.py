"""Bodies that a client sent compressed: unpacked within the same limit that plain ones have."""

import zlib

from connector.http import Request
from connector.router.errors import ApiError

_WINDOW_BITS = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


def plain_body(http: Request, max_bytes: int) -> bytes:
    """The request's body without its ``Content-Encoding``. Raises ``ApiError`` 400, 413 or 415."""
    coding = http.headers.get("Content-Encoding", "identity").strip().lower()
    if coding in ("identity", ""):
        return http.body
    if coding not in _WINDOW_BITS:
        raise ApiError(415, "The Content-Encodings taken are gzip and deflate.", code="unsupported_encoding")
    unpacker = zlib.decompressobj(_WINDOW_BITS[coding])
    try:
        body = unpacker.decompress(http.body, max_bytes + 1)
    except zlib.error as error:
        raise ApiError(400, f"The request body is not valid {coding}: {error}.", code="invalid_body") from None
    if len(body) > max_bytes:
        raise ApiError(413, f"The request body is larger than {max_bytes} bytes.", code="request_too_large")
    if not unpacker.eof:
        raise ApiError(400, f"The request body is not valid {coding}: it breaks off.", code="invalid_body")
    return body
