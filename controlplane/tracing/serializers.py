"""How spans and traces look in REST: the schema of ``documents``."""

from rest_framework import serializers

from controlplane.tracing.documents import KINDS, STATUSES
from controlplane.tracing.models import Span


class SpanSerializer(serializers.Serializer[object]):
    trace_id = serializers.CharField()
    span_id = serializers.CharField()
    parent_span_id = serializers.CharField(allow_null=True)
    name = serializers.CharField()
    kind = serializers.ChoiceField(choices=KINDS)
    service = serializers.CharField()
    start_unix_nano = serializers.CharField(help_text="By the exporter's clock, as decimal text.")
    end_unix_nano = serializers.CharField()
    offset_ms = serializers.FloatField(help_text="Since the trace's first span.")
    duration_ms = serializers.FloatField()
    status = serializers.ChoiceField(choices=STATUSES)
    status_message = serializers.CharField()
    attributes = serializers.DictField()
    events = serializers.ListField()
    links = serializers.ListField()
    num_dropped = serializers.IntegerField()


class NodeSerializer(serializers.Serializer[object]):
    span_id = serializers.CharField()
    children = serializers.ListField(help_text="Nodes of the same shape, in order of their start.")


class TraceSerializer(serializers.Serializer[object]):
    trace_id = serializers.CharField()
    started_at = serializers.DateTimeField()
    duration_ms = serializers.FloatField()
    num_spans = serializers.IntegerField()
    truncated = serializers.BooleanField(help_text="Whether the trace has more spans than are shown.")
    services = serializers.ListField(child=serializers.CharField())
    spans = SpanSerializer(many=True)
    tree = NodeSerializer(many=True)


class TraceEntrySerializer(serializers.Serializer[Span]):
    """A trace in a list, by its entry span."""

    trace_id = serializers.CharField()
    span_id = serializers.CharField()
    name = serializers.CharField()
    service = serializers.CharField()
    started_at = serializers.DateTimeField()
    duration_ms = serializers.FloatField()
    status = serializers.ChoiceField(choices=STATUSES)
    attributes = serializers.DictField()
