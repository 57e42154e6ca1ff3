"""Spans and traces as JSON documents; pure apart from reading the rows that they are given.

Times are those of the process that made the span: in nanoseconds as decimal text, as in OTLP's JSON, since they pass
2^53, and in milliseconds since the trace's first span.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from controlplane.tracing.identifiers import span_hex, trace_hex
from controlplane.tracing.models import Span
from controlplane.tracing.tree import Node, Placed, tree_of

KINDS = ("unspecified", "internal", "server", "client", "producer", "consumer")
STATUSES = ("unset", "ok", "error")
NS_PER_MS = 1e6


def trace_document(spans: Sequence[Span], *, max_spans: int) -> dict[str, Any]:
    """A trace with its ``spans``, which come in order of their start and are at least one."""
    first_ns, last_ns = spans[0].start_ns, max(span.end_ns for span in spans)
    tree = tree_of([Placed(span.span_id, span.parent_span_id) for span in spans])
    return {
        "trace_id": trace_hex(spans[0].trace_id),
        "started_at": _iso(first_ns),
        "duration_ms": (last_ns - first_ns) / NS_PER_MS,
        "num_spans": len(spans),
        "truncated": len(spans) >= max_spans,
        "services": sorted({span.service for span in spans}),
        "spans": [span_document(span, first_ns) for span in spans],
        "tree": [_node_document(node) for node in tree],
    }


def span_document(span: Span, first_ns: int) -> dict[str, Any]:
    return {
        "trace_id": trace_hex(span.trace_id),
        "span_id": span_hex(span.span_id),
        "parent_span_id": None if span.parent_span_id is None else span_hex(span.parent_span_id),
        "name": span.name,
        "kind": KINDS[span.kind],
        "service": span.service,
        "start_unix_nano": str(span.start_ns),
        "end_unix_nano": str(span.end_ns),
        "offset_ms": (span.start_ns - first_ns) / NS_PER_MS,
        "duration_ms": (span.end_ns - span.start_ns) / NS_PER_MS,
        "status": STATUSES[span.status_code],
        "status_message": span.status_message,
        "attributes": span.attributes,
        "events": span.events,
        "links": span.links,
        "num_dropped": span.num_dropped,
    }


def entry_document(span: Span) -> dict[str, Any]:
    """A trace as a list shows it, by its entry span."""
    return {
        "trace_id": trace_hex(span.trace_id),
        "span_id": span_hex(span.span_id),
        "name": span.name,
        "service": span.service,
        "started_at": _iso(span.start_ns),
        "duration_ms": (span.end_ns - span.start_ns) / NS_PER_MS,
        "status": STATUSES[span.status_code],
        "attributes": span.attributes,
    }


def _node_document(node: Node) -> dict[str, Any]:
    return {"span_id": span_hex(node.span_id), "children": [_node_document(child) for child in node.children]}


def _iso(unix_nano: int) -> str:
    return datetime.fromtimestamp(unix_nano // 1000 / 1e6, UTC).isoformat().replace("+00:00", "Z")
