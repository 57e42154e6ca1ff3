"""Every error of every door in one shape: RFC 9457 ``application/problem+json``.

``errors`` lists the offending fields as ``{"field": "values.kv_recompute_threshold", "message": "..."}``.
"""

import logging
import re
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import msgspec
from django.core.exceptions import ObjectDoesNotExist, PermissionDenied
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from redis.exceptions import RedisError
from rest_framework import exceptions
from rest_framework.response import Response
from rest_framework.views import set_rollback

logger = logging.getLogger(__name__)

PROBLEM_JSON = "application/problem+json"
_MSGSPEC_PATH = re.compile(r"^(?P<message>.*?)(?: - at `(?P<path>[^`]*)`)?$", re.DOTALL)
_LEADING_FIELD = re.compile(r"^(?P<field>[a-z][a-z0-9_]*) must ")


class FieldError(msgspec.Struct, frozen=True):
    field: str
    message: str


class InvalidInputError(Exception):
    """Input that an action refuses; becomes a 400 that names each field."""

    def __init__(self, *errors: FieldError) -> None:
        super().__init__("; ".join(f"{error.field}: {error.message}" for error in errors))
        self.errors = errors


class ConflictError(Exception):
    """The request is well-formed but the rows are in a state that forbids it; becomes a 409."""


def field_error(error: msgspec.ValidationError, prefix: str = "") -> FieldError:
    """The field that msgspec names in its message, below ``prefix``, and the message without it."""
    match = _MSGSPEC_PATH.match(str(error))
    message = match["message"] if match else str(error)
    path = (match["path"] or "$" if match else "$").removeprefix("$").replace("[...]", "").strip(".")
    leading = _LEADING_FIELD.match(message)
    parts = [prefix, path, leading["field"] if leading else ""]
    return FieldError(".".join(part for part in parts if part), message)


def problem_response(error: Exception, context: dict[str, Any]) -> Response | None:
    """DRF's exception handler. ``None`` lets an unexpected exception reach Django's 500 handling and log."""
    problem = _problem(error)
    if problem is None:
        return None
    set_rollback()
    headers = {}
    if isinstance(error, exceptions.APIException):
        if authenticate := getattr(error, "auth_header", None):
            headers["WWW-Authenticate"] = authenticate
        if (wait := getattr(error, "wait", None)) is not None:
            headers["Retry-After"] = str(int(wait) + 1)
    return Response(problem, status=problem["status"], headers=headers, content_type=PROBLEM_JSON)


def _problem(error: Exception) -> dict[str, Any] | None:
    match error:
        case exceptions.ValidationError():
            return problem(400, "The request is not valid.", list(_flatten(error.detail)))
        case msgspec.ValidationError():
            return problem(400, "The request is not valid.", [field_error(error)])
        case InvalidInputError():
            return problem(400, "The request is not valid.", list(error.errors))
        case ConflictError():
            return problem(409, str(error))
        case Http404() | ObjectDoesNotExist():
            return problem(404, "There is no such object.")
        case PermissionDenied():
            return problem(403, "This is not allowed with these credentials.")
        case OperationalError() | InterfaceError() | RedisError():
            logger.error("event=storage_away error=%r", str(error))
            return problem(503, "The control plane can't reach its database or Redis; try again.")
        case exceptions.APIException():
            return problem(error.status_code, str(error.detail))
    return None


def problem(status: int, detail: str, errors: list[FieldError] | None = None) -> dict[str, Any]:
    body: dict[str, Any] = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
    }
    if errors:
        body["errors"] = [msgspec.structs.asdict(error) for error in errors]
    return body


def _flatten(detail: Any, path: str = "") -> Iterator[FieldError]:
    """DRF's nested error details as dotted field paths."""
    if isinstance(detail, dict):
        for key, value in detail.items():
            yield from _flatten(value, f"{path}.{key}".strip("."))
    elif isinstance(detail, list):
        for index, value in enumerate(detail):
            yield from _flatten(value, f"{path}.{index}".strip(".") if isinstance(value, dict | list) else path)
    else:
        yield FieldError(path.removesuffix(".non_field_errors"), str(detail))


def problem_page(status: int, detail: str) -> HttpResponse:
    """The same shape outside DRF."""
    return JsonResponse(problem(status, detail), status=status, content_type=PROBLEM_JSON)


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    return problem_page(400, "The request is not valid.")


def permission_denied(request: HttpRequest, exception: Exception) -> HttpResponse:
    return problem_page(403, "This is not allowed with these credentials.")


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    return problem_page(404, "There is nothing at this address.")


def server_error(request: HttpRequest) -> HttpResponse:
    return problem_page(500, "The control plane failed; its log says why.")


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    return problem_page(403, f"The form can't be trusted: {reason}")
