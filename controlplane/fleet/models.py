"""What the fleet consists of and when each part was last heard."""

from typing import ClassVar

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.utils import timezone

from connector.identity import uuid7
from connector.protocol import Direction, EngineState, Role

MAX_NAME_CHARS = 128
MAX_URL_CHARS = 512


class State(models.TextChoices):
    """What operators and routers see: the agent's word, ``silent`` without one, ``pending`` before approval."""

    READY = EngineState.READY.value
    STALLED = EngineState.STALLED.value
    DOWN = EngineState.DOWN.value
    SILENT = "silent"
    PENDING = "pending"


class Engine(models.Model):
    """One vLLM server, known by its configured name. Made by its agent's first hello; an operator approves it once.

    ``role`` and ``model`` are empty until the engine itself has answered its agent.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    name = models.CharField(max_length=MAX_NAME_CHARS, unique=True)
    role = models.CharField(max_length=16, default="", blank=True, choices=[(role.value, role.value) for role in Role])
    model = models.CharField(max_length=200, default="", blank=True)
    incarnation = models.CharField(
        max_length=200, default="", blank=True, help_text="vLLM's engine id, new at every start."
    )
    former_incarnations = ArrayField(
        models.CharField(max_length=200),
        default=list,
        blank=True,
        help_text="The last ones that are known to be gone, newest first; peers are told that their KV is lost.",
    )
    reported_state = models.CharField(max_length=16, default=State.DOWN, choices=State)
    approved = models.BooleanField(default=False)
    draining = models.BooleanField(default=False)
    drain_requested_at = models.DateTimeField(null=True, blank=True, help_text="Null unless it drains.")
    drain_linger_seconds = models.FloatField(default=60.0)
    drain_deadline_seconds = models.FloatField(default=600.0)
    engine_url = models.CharField(max_length=MAX_URL_CHARS, default="", blank=True)
    feed_url = models.CharField(max_length=MAX_URL_CHARS, default="", blank=True)
    block_size = models.PositiveIntegerField(default=0)
    num_blocks = models.PositiveIntegerField(default=0)
    bytes_per_block = models.PositiveBigIntegerField(default=0)
    kv_dtype = models.CharField(max_length=64, default="", blank=True)
    vllm_version = models.CharField(max_length=64, default="", blank=True)
    connector_version = models.CharField(max_length=64, default="", blank=True)
    unsupported_fields = ArrayField(models.CharField(max_length=64), default=list, blank=True)
    load = models.JSONField(null=True, blank=True, help_text="The last EngineLoad.")
    created_at = models.DateTimeField(default=timezone.now)
    last_seen_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return self.name

    @property
    def state(self) -> str:
        return self.reported_state if self.approved else State.PENDING


class Agent(models.Model):
    """The sidecar of one engine, and how far its events are stored.

    Invariant: every event of ``boot`` up to ``committed_sequence`` is in the tables, once; both move in the
    transaction that stores a batch. ``connection`` names the socket that speaks for the engine now.
    """

    engine = models.OneToOneField(Engine, models.CASCADE, primary_key=True, related_name="agent")
    boot = models.CharField(max_length=64, default="", blank=True)
    committed_sequence = models.PositiveBigIntegerField(default=0)
    connection = models.CharField(max_length=200, default="", blank=True)
    connected = models.BooleanField(default=False)
    version = models.CharField(max_length=64, default="", blank=True)
    num_pending_events = models.PositiveBigIntegerField(default=0)
    num_dropped_events = models.PositiveBigIntegerField(default=0)
    last_seen_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"agent of {self.engine_id}"


class Router(models.Model):
    """One router process, known by its configured name; the same invariant as an agent's holds for its events."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    name = models.CharField(max_length=MAX_NAME_CHARS, unique=True)
    boot = models.CharField(max_length=64, default="", blank=True)
    committed_sequence = models.PositiveBigIntegerField(default=0)
    connection = models.CharField(max_length=200, default="", blank=True)
    connected = models.BooleanField(default=False)
    version = models.CharField(max_length=64, default="", blank=True)
    num_active_turns = models.PositiveIntegerField(default=0)
    num_leases = models.PositiveIntegerField(default=0)
    num_pending_events = models.PositiveBigIntegerField(default=0)
    num_dropped_events = models.PositiveBigIntegerField(default=0)
    last_seen_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return self.name


class Pair(models.Model):
    """A directed link between two engines and the sums of what moved over it; made by its first transfer."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    source = models.CharField(max_length=MAX_NAME_CHARS)
    target = models.CharField(max_length=MAX_NAME_CHARS)
    direction = models.CharField(max_length=8, choices=[(way.value, way.value) for way in Direction])
    num_transfers = models.PositiveBigIntegerField(default=0)
    num_not_completed = models.PositiveBigIntegerField(default=0)
    num_fenced = models.PositiveBigIntegerField(
        default=0, help_text="Reads of leases that had ended, or ended meanwhile: caught by the fence and recomputed."
    )
    num_bytes = models.PositiveBigIntegerField(default=0, help_text="Of completed transfers.")
    duration_ms = models.FloatField(default=0, help_text="Sum over completed transfers.")
    last_outcome = models.CharField(max_length=16, default="", blank=True)
    last_transfer_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["source", "target", "direction"], name="pair_is_directed"),
        ]

    def __str__(self) -> str:
        return f"{self.source} {self.direction} {self.target}"


class OperationState(models.TextChoices):
    """``unanswered``: the deadline passed without a word of the engine; a late answer still settles it."""

    WAITING = "waiting"
    DONE = "done"
    FAILED = "failed"
    UNANSWERED = "unanswered"


class Operation(models.Model):
    """A command sent to an engine and what happened there. ``id`` is the command id, so an answer finds its row."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    engine_name = models.CharField(max_length=MAX_NAME_CHARS)
    command = models.CharField(max_length=32)
    body = models.JSONField()
    actor = models.CharField(max_length=200, default="", blank=True)
    state = models.CharField(max_length=16, choices=OperationState, default=OperationState.WAITING)
    outcome = models.CharField(max_length=32, default="", blank=True)
    detail = models.CharField(max_length=500, default="", blank=True)
    deadline_seconds = models.FloatField()
    created_at = models.DateTimeField(default=timezone.now)
    finished_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"{self.command} at {self.engine_name}"


class EventFault(models.Model):
    """Counts events that a sender's batches held but that could not be stored; they are skipped, not retried."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    sender = models.CharField(max_length=MAX_NAME_CHARS + 16)
    event_type = models.CharField(max_length=64)
    error = models.CharField(max_length=64, help_text="Class of the error.")
    num_events = models.PositiveBigIntegerField(default=0)
    last_detail = models.CharField(max_length=300, default="", blank=True)
    last_sequence = models.PositiveBigIntegerField(default=0)
    last_at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["sender", "event_type", "error"], name="event_fault_is_counted_once"),
        ]

    def __str__(self) -> str:
        return f"{self.num_events} {self.event_type} of {self.sender}: {self.error}"
