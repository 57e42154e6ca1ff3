"""Every NIXL movement, and what each pair moved per minute."""

from typing import ClassVar

from django.contrib.postgres.fields import ArrayField
from django.db import models

from connector.protocol import Direction, TransferOutcome
from controlplane.placement.bounds import MAX_ID_CHARS, MAX_NAME_CHARS, MAX_REASON_CHARS


class Transfer(models.Model):
    """One movement as the engine that read reported it. Written once, never changed.

    ``session_id``, ``turn_id`` and ``lease_id`` name rows that another sender's events may still have to make.
    """

    id = models.CharField(primary_key=True, max_length=MAX_ID_CHARS)
    direction = models.CharField(max_length=8, choices=[(way.value, way.value) for way in Direction])
    source = models.CharField(max_length=MAX_NAME_CHARS)
    target = models.CharField(max_length=MAX_NAME_CHARS)
    session_id = models.CharField(max_length=MAX_ID_CHARS)
    turn_id = models.UUIDField()
    lease_id = models.CharField(max_length=MAX_ID_CHARS)
    tokens = models.PositiveIntegerField()
    blocks = models.PositiveIntegerField()
    bytes = models.PositiveBigIntegerField()
    post_ms = models.FloatField()
    duration_ms = models.FloatField()
    outcome = models.CharField(max_length=16, choices=[(end.value, end.value) for end in TransferOutcome])
    reason = models.CharField(max_length=MAX_REASON_CHARS)
    ranks = models.PositiveIntegerField()
    started_at = models.DateTimeField()
    trace_id = models.CharField(max_length=32)
    span_id = models.CharField(max_length=16)

    class Meta:
        indexes: ClassVar = [
            models.Index(fields=["-started_at", "-id"], name="transfer_newest"),
            models.Index(fields=["session_id", "-started_at", "-id"], name="transfer_of_session"),
            models.Index(fields=["turn_id"], name="transfer_of_turn"),
        ]

    def __str__(self) -> str:
        return f"{self.id} {self.source} {self.direction} {self.target}"


class PairMinute(models.Model):
    """Sums over the transfers of a pair that started within one minute; equal to those of their rows.

    ``buckets`` counts durations by ``rollups.BUCKET_BOUNDS_MS``, the last one those beyond. Bytes, tokens, durations
    and buckets are of completed transfers.
    """

    pk = models.CompositePrimaryKey("minute", "source", "target", "direction")
    minute = models.DateTimeField()
    source = models.CharField(max_length=MAX_NAME_CHARS)
    target = models.CharField(max_length=MAX_NAME_CHARS)
    direction = models.CharField(max_length=8)
    count = models.PositiveIntegerField()
    failures = models.PositiveIntegerField()
    tokens = models.PositiveBigIntegerField()
    bytes = models.PositiveBigIntegerField()
    duration_ms_sum = models.FloatField()
    duration_ms_max = models.FloatField()
    buckets = ArrayField(models.PositiveIntegerField())

    def __str__(self) -> str:
        return f"{self.source} {self.direction} {self.target} at {self.minute}"
