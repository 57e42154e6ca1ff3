"""OTLP/HTTP's door for spans: ``POST /v1/traces`` with protobuf, gzip or plain, behind a bearer token.

Answers as the OTLP specification says: ``ExportTraceServiceResponse``, with ``partial_success`` where spans were
refused, or ``google.rpc.Status`` in an error's body. An exporter retries after 503, never after 4xx.
"""

import logging
from collections.abc import Callable, Mapping
from typing import IO, Any

from django.db import InterfaceError, OperationalError
from django.http import HttpResponse
from drf_spectacular.utils import extend_schema
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]  # googleapis ships no types
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from rest_framework.exceptions import APIException, UnsupportedMediaType
from rest_framework.parsers import BaseParser
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from controlplane.accounts.authentication import TelemetryAuthentication
from controlplane.accounts.permissions import IsExporter
from controlplane.errors import problem_response
from controlplane.tracing.actions import store_spans
from controlplane.tracing.otlp import (
    MAX_BODY_BYTES,
    MalformedExportError,
    OversizedExportError,
    read_export,
    unpack,
)

logger = logging.getLogger(__name__)

PROTOBUF = "application/x-protobuf"
ENCODINGS = ("", "identity", "gzip")
RETRY_AFTER_SECONDS = "2"


class BodyTooLarge(APIException):
    status_code = 413
    default_detail = f"The body is larger than {MAX_BODY_BYTES} bytes."


class ExportParser(BaseParser):
    """The body as bytes under ``body``; reads no more than the limit."""

    media_type = PROTOBUF

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> dict[str, bytes]:
        body: bytes = stream.read(MAX_BODY_BYTES + 1)
        if len(body) > MAX_BODY_BYTES:
            raise BodyTooLarge
        return {"body": body}


class MessageRenderer(BaseRenderer):
    """A serialized protobuf message as it is."""

    media_type = PROTOBUF
    format = "protobuf"
    charset = None
    render_style = "binary"

    def render(
        self, data: Any, accepted_media_type: str | None = None, renderer_context: Mapping[str, Any] | None = None
    ) -> bytes:
        return bytes(data)


class ReceiverView(APIView):
    authentication_classes = [TelemetryAuthentication]
    permission_classes = [IsExporter]
    parser_classes = [ExportParser]
    renderer_classes = [MessageRenderer]

    @extend_schema(exclude=True)
    def post(self, request: Request) -> HttpResponse:
        encoding = request.headers.get("Content-Encoding", "").strip().lower()
        if encoding not in ENCODINGS:
            raise UnsupportedMediaType(encoding, detail="The body may be packed with gzip only.")
        # A request without a body isn't parsed and has no data: it exports nothing.
        body: bytes = request.data["body"] if isinstance(request.data, dict) and request.data else b""
        export = read_export(unpack(body, encoding))
        store_spans(export.rows)
        answer = ExportTraceServiceResponse()
        if export.num_refused:
            logger.warning("event=spans_refused num_spans=%d reason=%s", export.num_refused, export.reason)
            answer.partial_success.rejected_spans = export.num_refused
            answer.partial_success.error_message = export.reason
        # Not DRF's response: that leaves out the content type of an empty body, which a full success is.
        return HttpResponse(answer.SerializeToString(), content_type=PROTOBUF)

    def get_exception_handler(self) -> Callable[[Exception, dict[str, Any]], Response | None]:
        return status_response


def status_response(error: Exception, context: dict[str, Any]) -> Response | None:
    """An error as OTLP wants it. ``None`` lets an unexpected one reach Django's 500 handling and log."""
    match error:
        case MalformedExportError():
            return _status(400, str(error))
        case OversizedExportError():
            return _status(413, str(error))
        case OperationalError() | InterfaceError():
            logger.error("event=spans_not_stored error=%s", type(error).__name__)
            return _status(503, "The database can't be reached.", {"Retry-After": RETRY_AFTER_SECONDS})
    response = problem_response(error, context)
    if response is None:
        return None
    return _status(response.status_code, response.data["detail"], dict(response.headers))


def _status(http_status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    kept = {name: value for name, value in (headers or {}).items() if name != "Content-Type"}
    return Response(
        Status(message=message).SerializeToString(), status=http_status, headers=kept, content_type=PROTOBUF
    )
