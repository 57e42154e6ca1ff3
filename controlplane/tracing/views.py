"""REST of traces."""

from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.http import Http404
from django_filters import rest_framework as filters
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from controlplane.pagination import TimeOrderedPagination
from controlplane.tracing import selectors
from controlplane.tracing.documents import entry_document, trace_document
from controlplane.tracing.models import Span
from controlplane.tracing.serializers import TraceEntrySerializer, TraceSerializer


class EntryPagination(TimeOrderedPagination):
    """Latest start first; the key breaks ties."""

    ordering: Any = ("-start_ns", "trace_id", "span_id")


class TraceFilter(filters.FilterSet):  # type: ignore[misc]  # django-filter ships no types
    session = filters.CharFilter(method="filter_session")
    service = filters.CharFilter()

    class Meta:
        model = Span
        fields: list[str] = []

    def filter_session(self, entries: QuerySet[Span], name: str, value: str) -> QuerySet[Span]:
        return selectors.entries_of_session(entries, value)


class TraceViewSet(GenericViewSet[Span]):
    """Traces by their entry span: a turn, or whatever has no parent."""

    queryset = selectors.entry_spans()
    serializer_class = TraceEntrySerializer
    pagination_class = EntryPagination
    filterset_class = TraceFilter
    lookup_url_kwarg = "trace_id"
    lookup_value_regex = "[^/]+"

    @extend_schema(responses=TraceEntrySerializer(many=True))
    def list(self, request: Request) -> Response:
        """Traces, latest first."""
        page = self.paginate_queryset(self.filter_queryset(self.get_queryset())) or []
        return self.get_paginated_response([entry_document(span) for span in page])

    @extend_schema(responses=TraceSerializer, filters=False)
    def retrieve(self, request: Request, trace_id: str) -> Response:
        """A whole trace: its spans in order of their start, and the same as a tree."""
        spans = selectors.spans_of_trace(parsed_trace_id(trace_id))
        if not spans:
            raise Http404
        return Response(trace_document(spans, max_spans=selectors.MAX_SPANS_OF_TRACE))


def parsed_trace_id(text: str) -> UUID:
    """32 hexadecimal digits, lower or upper case; anything else names no trace."""
    try:
        trace_id = UUID(hex=text)
    except ValueError:
        raise Http404 from None
    if len(text) != len(trace_id.hex):
        raise Http404
    return trace_id
