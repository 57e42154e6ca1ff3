"""Errors in the shape that Anthropic's clients parse: ``{"type": "error", "error": {type, message}}``."""

from http import HTTPStatus

import msgspec

_TYPE_BY_STATUS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


class _Detail(msgspec.Struct, frozen=True):
    type: str
    message: str


class _Body(msgspec.Struct, frozen=True, omit_defaults=True):
    error: _Detail
    type: str = ""
    request_id: str = ""


class _Told(msgspec.Struct, frozen=True):
    message: str
    type: str | None = None


class _Found(msgspec.Struct, frozen=True):
    """An error in either shape; only Anthropic's has a type at the top."""

    error: _Told | str
    type: str = ""


_TYPES = frozenset((*_TYPE_BY_STATUS.values(), "api_error", "billing_error"))

_decode = msgspec.json.Decoder(_Found).decode


def anthropic_body(status: int, message: str, request_id: str = "") -> bytes:
    default = "invalid_request_error" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "api_error"
    detail = _Detail(_TYPE_BY_STATUS.get(status, default), message.encode(errors="replace").decode())
    return msgspec.json.encode(_Body(detail, "error", request_id))


def in_anthropic_shape(status: int, body: bytes) -> bytes:
    """An engine's error. vLLM answers in OpenAI's shape what it refuses before its messages API sees it, and puts types
    of its own into Anthropic's; anything else stays as it came."""
    try:
        found = _decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return body
    if isinstance(found.error, str):
        return anthropic_body(status, found.error)
    if found.type == "error" and found.error.type in _TYPES:
        return body
    return anthropic_body(status, found.error.message)
