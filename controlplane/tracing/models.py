"""Spans of every process of the fleet, kept for a while so that a turn's trace can be shown."""

from typing import ClassVar

from django.contrib.postgres.indexes import BrinIndex
from django.db import models
from django.db.models.functions import Now

MAX_NAME_CHARS = 256
MAX_SERVICE_CHARS = 128
MAX_MESSAGE_CHARS = 512
TURN_SPAN = "turn"
LEASE_SPAN = "kv.lease"

IS_ENTRY = models.Q(name=TURN_SPAN) | (models.Q(parent_span_id=None) & ~models.Q(name=LEASE_SPAN))
"""Which spans stand for their trace in a list: turns, whose parent may be a client's span that we never see, and spans
without a parent; but not the end of a lease, which is a trace of its own, linked to its turn."""


class Span(models.Model):
    """One span as it was exported first; a repeated export changes nothing. Rows go after the retention time.

    Ids are kept as numbers (``identifiers``): the key is all that most inserts touch, and the only index on every row
    besides a block range index over the time of arrival, which costs next to nothing.
    """

    pk = models.CompositePrimaryKey("trace_id", "span_id")
    trace_id = models.UUIDField()
    span_id = models.BigIntegerField()
    parent_span_id = models.BigIntegerField(null=True)
    name = models.CharField(max_length=MAX_NAME_CHARS)
    kind = models.PositiveSmallIntegerField()
    service = models.CharField(max_length=MAX_SERVICE_CHARS)
    start_ns = models.BigIntegerField(help_text="Unix time by the exporter's clock.")
    end_ns = models.BigIntegerField()
    status_code = models.PositiveSmallIntegerField()
    status_message = models.CharField(max_length=MAX_MESSAGE_CHARS)
    attributes = models.JSONField()
    events = models.JSONField()
    links = models.JSONField()
    num_dropped = models.PositiveIntegerField(help_text="Attributes, events and links left out by the SDK or by us.")
    received_at = models.DateTimeField(db_default=Now())

    class Meta:
        indexes: ClassVar = [
            BrinIndex(fields=["received_at"], name="span_arrival", pages_per_range=32, autosummarize=True),
            models.Index(
                fields=["-start_ns", "trace_id", "span_id"],
                name="span_entries",
                condition=IS_ENTRY,
            ),
        ]

    def __str__(self) -> str:
        return f"{self.service} {self.name}"
