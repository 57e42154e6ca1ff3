"""Reads of spans: one trace, or the entries of many."""

from collections.abc import Collection
from uuid import UUID

from django.db.models import QuerySet

from controlplane.placement.selectors import trace_ids_of_session
from controlplane.tracing.models import IS_ENTRY, Span

MAX_SPANS_OF_TRACE = 5_000
MAX_TRACES_OF_SESSION = 1_000


def spans_of_trace(trace_id: UUID) -> list[Span]:
    """In order of their start, at most ``MAX_SPANS_OF_TRACE`` of them."""
    found = Span.objects.filter(trace_id=trace_id).order_by("start_ns", "span_id")
    return list(found[:MAX_SPANS_OF_TRACE])


def entry_spans() -> QuerySet[Span]:
    """Spans by which a trace is listed."""
    return Span.objects.filter(IS_ENTRY)


def entries_of_session(entries: QuerySet[Span], session_id: str) -> QuerySet[Span]:
    """Those of a session's turns, its latest ones if there are very many."""
    trace_ids: Collection[str] = trace_ids_of_session(session_id, limit=MAX_TRACES_OF_SESSION)
    return entries.filter(trace_id__in=[UUID(trace_id) for trace_id in trace_ids])
