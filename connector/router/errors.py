"""Errors in the shape that OpenAI's clients parse: ``{"error": {message, type, param, code}}``; or in Anthropic's."""

import msgspec

from connector.http import Response, field
from connector.router.anthropic_errors import anthropic_body

JSON = (b"content-type", b"application/json")

_TYPE_BY_STATUS = {
    401: "invalid_request_error",
    404: "invalid_request_error",
    429: "rate_limit_error",
}


class ErrorDetail(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct, frozen=True):
    error: ErrorDetail


class ApiError(Exception):
    """An answer that the router itself gives. ``param`` names the field at fault; ``retry_after`` is in seconds;
    ``allow`` lists a path's methods."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
        close: bool = False,
        allow: str = "",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.retry_after = retry_after
        self.close = close
        self.allow = allow
        self.request_id = ""

    def body(self, in_anthropics_shape: bool = False) -> bytes:
        if in_anthropics_shape:
            return anthropic_body(self.status, self.message, self.request_id)
        default = "invalid_request_error" if self.status < 500 else "server_error"
        kind = _TYPE_BY_STATUS.get(self.status, default)
        message = self.message.encode(errors="replace").decode()
        return msgspec.json.encode(ErrorBody(ErrorDetail(message, kind, self.param, self.code)))

    def to_response(self, in_anthropics_shape: bool = False) -> Response:
        pairs = [JSON]
        if self.retry_after is not None:
            pairs.append(field("Retry-After", str(self.retry_after)))
        if self.allow:
            pairs.append(field("Allow", self.allow))
        if self.status == 401:
            pairs.append((b"www-authenticate", b"Bearer"))
        if self.request_id:
            pairs.append(field("X-Request-Id", self.request_id))
        return Response(self.status, self.body(in_anthropics_shape), pairs, close=self.close)


def bad_request(message: str, param: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code="invalid_value" if param else "invalid_json")


def unknown_model(model: str) -> ApiError:
    shown = model if len(model) <= 64 else model[:61] + "..."
    return ApiError(404, f"The model {shown!r} does not exist.", param="model", code="model_not_found")


def untrusted(engine: str) -> ApiError:
    """Its certificate, or that it has none, is for the operator to see to; the log says what is wrong."""
    return ApiError(502, f"No trusted TLS connection to the {engine} could be made.", code="engine_untrusted")


def no_engine(message: str) -> ApiError:
    """No engine can take the turn now; the client may try again soon."""
    return ApiError(503, message, code="no_engine_available", retry_after=1)
