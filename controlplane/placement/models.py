"""Who talked, what each turn cost, and which engine holds whose KV.

Rows are built from events of several senders in any order, so every column but the keys may still be empty. Nothing
here holds prompt text, token ids or digests.
"""

from typing import ClassVar

from django.db import models

from connector.protocol import LeaseState
from controlplane.placement.bounds import MAX_ID_CHARS, MAX_NAME_CHARS, MAX_REASON_CHARS, MAX_ROLE_CHARS

ENDED_STATES = (LeaseState.SUPERSEDED, LeaseState.RELEASED, LeaseState.EXPIRED, LeaseState.LOST)
OPEN_STATES = (LeaseState.HELD, LeaseState.UNKNOWN)
TURN_RUNNING = "running"


class Session(models.Model):
    """A conversation. Made by the first event that names it; ``num_turns`` equals the number of its turns."""

    id = models.CharField(primary_key=True, max_length=MAX_ID_CHARS)
    tenant = models.CharField(max_length=MAX_NAME_CHARS, default="")
    model = models.CharField(max_length=MAX_ID_CHARS, default="")
    model_at = models.DateTimeField(null=True, help_text="Start of the turn that named the model.")
    created_at = models.DateTimeField()
    last_turn_at = models.DateTimeField()
    num_turns = models.PositiveIntegerField(default=0)

    class Meta:
        indexes: ClassVar = [models.Index(fields=["-last_turn_at", "-id"], name="session_newest")]

    def __str__(self) -> str:
        return self.id


class Turn(models.Model):
    """One request in a session. ``status`` is ``running`` until the router reports the end (``recorded_at``).

    The router's word on engines, times and counts stands above the engines'; each leg's decision is the latest that an
    engine took for it (``*_decided_at``).
    """

    id = models.UUIDField(primary_key=True)
    session = models.ForeignKey(Session, models.CASCADE, related_name="turns", db_index=False)
    parent_turn_id = models.UUIDField(null=True, help_text="May name a turn that is not recorded yet.")
    index = models.PositiveIntegerField(null=True)
    model = models.CharField(max_length=MAX_ID_CHARS, default="")
    status = models.CharField(max_length=16, default=TURN_RUNNING)
    http_status = models.PositiveSmallIntegerField(null=True)
    stream = models.BooleanField(null=True)
    prompt_tokens = models.PositiveIntegerField(default=0)
    output_tokens = models.PositiveIntegerField(default=0)
    reused_tokens = models.PositiveIntegerField(default=0, help_text="Pulled from D on the prefill leg.")
    offered_tokens = models.PositiveIntegerField(default=0)
    verified_tokens = models.PositiveIntegerField(default=0)
    local_tokens = models.PositiveIntegerField(default=0)
    diverged_at_token = models.PositiveIntegerField(
        null=True, help_text="Where the prompt differs from the KV that P was offered: first token of that block."
    )
    diverged_at_message = models.PositiveIntegerField(
        null=True, help_text="Index of the first message that differs from the turn whose KV was offered."
    )
    diverged_role = models.CharField(
        max_length=MAX_ROLE_CHARS,
        default="",
        help_text="That message's role; tools; or template, where token ids differ though no message does.",
    )
    prefill_decision = models.CharField(max_length=40, default="")
    decode_decision = models.CharField(max_length=40, default="")
    prefill_engine = models.CharField(max_length=MAX_NAME_CHARS, default="", help_text="As the router chose it.")
    decode_engine = models.CharField(max_length=MAX_NAME_CHARS, default="", help_text="As the router chose it.")
    prefill_decided_by = models.CharField(max_length=MAX_NAME_CHARS, default="")
    decode_decided_by = models.CharField(max_length=MAX_NAME_CHARS, default="")
    prefill_decided_at = models.DateTimeField(null=True)
    decode_decided_at = models.DateTimeField(null=True)
    recorded_at = models.DateTimeField(null=True)
    started_at = models.DateTimeField()
    prefill_ms = models.FloatField(null=True)
    ttft_ms = models.FloatField(null=True)
    duration_ms = models.FloatField(null=True)
    trace_id = models.CharField(max_length=32, default="")

    class Meta:
        indexes: ClassVar = [models.Index(fields=["session", "-started_at", "-id"], name="turn_of_session")]

    def __str__(self) -> str:
        return str(self.id)


class Placement(models.Model):
    """One lease: the timed right of a session's turn to an engine's KV blocks.

    Open while ``held``, or ``unknown`` as long as its engine is silent; an end is final unless the control plane only
    inferred it (``is_end_reported`` false) and the engine says otherwise. A row without a session stands for a lease
    whose grant has not arrived: it is never listed and goes after an hour.
    """

    id = models.CharField(primary_key=True, max_length=MAX_ID_CHARS)
    session = models.ForeignKey(Session, models.CASCADE, related_name="placements", null=True)
    turn = models.ForeignKey(Turn, models.CASCADE, related_name="placements", null=True)
    tenant = models.CharField(max_length=MAX_NAME_CHARS, default="")
    engine = models.CharField(max_length=MAX_NAME_CHARS)
    incarnation = models.CharField(max_length=MAX_ID_CHARS)
    tokens = models.PositiveIntegerField(default=0)
    blocks = models.PositiveIntegerField(default=0)
    bytes = models.PositiveBigIntegerField(default=0)
    granted_at = models.DateTimeField()
    expires_at = models.DateTimeField(null=True, help_text="Null while pinned.")
    expiry_known_at = models.DateTimeField(null=True, help_text="When the engine last set the expiry.")
    pinned = models.BooleanField(default=False)
    state = models.CharField(max_length=16, default=LeaseState.HELD)
    ended_at = models.DateTimeField(null=True)
    end_reason = models.CharField(max_length=MAX_REASON_CHARS, default="")
    is_end_reported = models.BooleanField(default=False)
    num_reads = models.PositiveIntegerField(default=0)

    class Meta:
        indexes: ClassVar = [
            models.Index(fields=["-granted_at", "-id"], name="placement_newest"),
            models.Index(fields=["engine"], name="placement_open", condition=models.Q(state__in=OPEN_STATES)),
            models.Index(
                fields=["expires_at"], name="placement_running_out", condition=models.Q(state__in=OPEN_STATES)
            ),
            models.Index(fields=["granted_at"], name="placement_without_grant", condition=models.Q(session=None)),
        ]
        constraints: ClassVar = [
            models.CheckConstraint(condition=models.Q(state__in=list(LeaseState)), name="placement_state_is_known"),
            models.CheckConstraint(
                condition=models.Q(state__in=OPEN_STATES, ended_at=None)
                | models.Q(state__in=ENDED_STATES, ended_at__isnull=False),
                name="placement_ends_once",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.id} on {self.engine}"


class LeaseListing(models.Model):
    """When an engine last listed its leases, and which incarnation was last known dead. One row per engine, kept.

    It tells a late grant of a lease that is gone from one that is new: the first is older than the list and not on it.
    """

    engine = models.CharField(primary_key=True, max_length=MAX_NAME_CHARS)
    listed_at = models.DateTimeField(null=True)
    lost_incarnation = models.CharField(max_length=MAX_ID_CHARS, default="")

    def __str__(self) -> str:
        return self.engine
