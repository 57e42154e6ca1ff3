"""How the fleet looks in REST."""

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from controlplane.fleet.drains import MAX_DRAIN_SECONDS, DrainProgress, DrainState, progress_of
from controlplane.fleet.models import Agent, Engine, Operation, Pair, Router, State


class EngineLoadSerializer(serializers.Serializer[dict[str, int]]):
    num_free_blocks = serializers.IntegerField()
    num_blocks = serializers.IntegerField()
    num_leases = serializers.IntegerField()
    num_leased_blocks = serializers.IntegerField()
    num_quarantined_blocks = serializers.IntegerField()
    num_running = serializers.IntegerField()
    num_waiting = serializers.IntegerField()
    num_dropped_events = serializers.IntegerField()
    num_unread_blocks = serializers.IntegerField(
        required=False, help_text="Held by session leases that no pull has read so far."
    )
    unread_block_seconds = serializers.FloatField(
        required=False, help_text="Cost of session leases that ended without a read, since the engine's start."
    )
    num_contained = serializers.IntegerField(
        required=False, help_text="Exceptions of the connector's own that were kept from the engine, since its start."
    )
    refused_offers = serializers.DictField(
        child=serializers.IntegerField(),
        required=False,
        help_text="Offers of other engines that were not used since its start, by the reason; see the README.",
    )


class DrainSerializer(serializers.Serializer[DrainProgress]):
    state = serializers.ChoiceField(
        choices=[state.value for state in DrainState],
        help_text="drained: it holds no lease, runs no leg and moves no block.",
    )
    num_leases = serializers.IntegerField(
        allow_null=True, help_text="As the engine said last; null while it is silent."
    )
    num_legs = serializers.IntegerField(allow_null=True, help_text="Running and waiting requests, likewise.")
    requested_at = serializers.DateTimeField()
    releases_at = serializers.DateTimeField(help_text="From then on leases that no session came back for are released.")
    deadline_at = serializers.DateTimeField(help_text="From then on pinned leases are released as well.")


class DrainOptionsSerializer(serializers.Serializer[object]):
    """Describes ``drains.DrainOptions`` to the schema."""

    linger_seconds = serializers.FloatField(
        required=False,
        min_value=0,
        max_value=MAX_DRAIN_SECONDS,
        help_text="How long leases wait for their sessions to come back before they are released. Default 60.",
    )
    deadline_seconds = serializers.FloatField(
        required=False,
        min_value=0,
        max_value=MAX_DRAIN_SECONDS,
        help_text="When all leases are released, pinned ones too. Default 600.",
    )


class EngineSerializer(serializers.ModelSerializer[Engine]):
    state = serializers.ChoiceField(choices=State.choices, read_only=True)
    load = EngineLoadSerializer(read_only=True, allow_null=True)
    drain = serializers.SerializerMethodField(help_text="Null unless it drains.")

    class Meta:
        model = Engine
        fields = [
            "name",
            "role",
            "model",
            "state",
            "approved",
            "draining",
            "drain",
            "incarnation",
            "engine_url",
            "feed_url",
            "block_size",
            "num_blocks",
            "bytes_per_block",
            "kv_dtype",
            "vllm_version",
            "connector_version",
            "unsupported_fields",
            "load",
            "created_at",
            "last_seen_at",
        ]

    @extend_schema_field(DrainSerializer(allow_null=True))
    def get_drain(self, engine: Engine) -> dict[str, Any] | None:
        progress = progress_of(engine)
        return DrainSerializer(progress).data if progress else None


class AgentSerializer(serializers.ModelSerializer[Agent]):
    engine = serializers.CharField(source="engine.name")

    class Meta:
        model = Agent
        fields = [
            "engine",
            "connected",
            "version",
            "boot",
            "committed_sequence",
            "num_pending_events",
            "num_dropped_events",
            "last_seen_at",
        ]


class RouterSerializer(serializers.ModelSerializer[Router]):
    class Meta:
        model = Router
        fields = [
            "name",
            "connected",
            "version",
            "boot",
            "committed_sequence",
            "num_active_turns",
            "num_leases",
            "num_pending_events",
            "num_dropped_events",
            "last_seen_at",
        ]


class PairSerializer(serializers.ModelSerializer[Pair]):
    mean_bytes_per_second = serializers.SerializerMethodField(help_text="Null before the first completed transfer.")

    class Meta:
        model = Pair
        fields = [
            "id",
            "source",
            "target",
            "direction",
            "num_transfers",
            "num_not_completed",
            "num_fenced",
            "num_bytes",
            "mean_bytes_per_second",
            "last_outcome",
            "last_transfer_at",
        ]

    def get_mean_bytes_per_second(self, pair: Pair) -> float | None:
        return pair.num_bytes / pair.duration_ms * 1000 if pair.duration_ms else None


class OperationSerializer(serializers.ModelSerializer[Operation]):
    engine = serializers.CharField(source="engine_name")

    class Meta:
        model = Operation
        fields = [
            "id",
            "engine",
            "command",
            "body",
            "actor",
            "state",
            "outcome",
            "detail",
            "deadline_seconds",
            "created_at",
            "finished_at",
        ]


class ResetCacheSerializer(serializers.Serializer[object]):
    """Describes ``commands.ResetOptions`` to the schema."""

    command_id = serializers.UUIDField(
        required=False, help_text="Repeats an earlier command's answer; default: a new one."
    )
    deadline_seconds = serializers.FloatField(
        required=False, min_value=2, max_value=30, help_text="How long the engine goes on trying. Default 10."
    )
