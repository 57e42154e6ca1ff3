"""How sessions, turns and placements look in REST."""

from rest_framework import serializers

from controlplane.placement.commands import MAX_TTL_SECONDS
from controlplane.placement.models import Placement, Session, Turn


class PlacementSerializer(serializers.ModelSerializer[Placement]):
    session = serializers.CharField(source="session_id")
    turn = serializers.UUIDField(source="turn_id")

    class Meta:
        model = Placement
        fields = [
            "id",
            "session",
            "turn",
            "tenant",
            "engine",
            "incarnation",
            "tokens",
            "blocks",
            "bytes",
            "granted_at",
            "expires_at",
            "pinned",
            "state",
            "ended_at",
            "end_reason",
            "num_reads",
        ]


class SessionSerializer(serializers.ModelSerializer[Session]):
    live = serializers.SerializerMethodField(help_text="Whether an engine holds some of its KV now.")
    placements = PlacementSerializer(source="held_placements", many=True, help_text="Those held now.")

    class Meta:
        model = Session
        fields = ["id", "tenant", "model", "created_at", "last_turn_at", "num_turns", "live", "placements"]

    def get_live(self, session: Session) -> bool:
        held: list[Placement] = getattr(session, "held_placements", [])
        return bool(held)


class TurnSerializer(serializers.ModelSerializer[Turn]):
    session = serializers.CharField(source="session_id")
    parent_turn = serializers.UUIDField(source="parent_turn_id", allow_null=True)
    prefill_engine = serializers.SerializerMethodField()
    decode_engine = serializers.SerializerMethodField()

    class Meta:
        model = Turn
        fields = [
            "id",
            "session",
            "parent_turn",
            "index",
            "model",
            "status",
            "http_status",
            "stream",
            "prompt_tokens",
            "output_tokens",
            "reused_tokens",
            "offered_tokens",
            "verified_tokens",
            "local_tokens",
            "diverged_at_token",
            "diverged_at_message",
            "diverged_role",
            "prefill_decision",
            "decode_decision",
            "prefill_engine",
            "decode_engine",
            "started_at",
            "prefill_ms",
            "ttft_ms",
            "duration_ms",
            "trace_id",
        ]

    def get_prefill_engine(self, turn: Turn) -> str:
        return turn.prefill_engine or turn.prefill_decided_by

    def get_decode_engine(self, turn: Turn) -> str:
        return turn.decode_engine or turn.decode_decided_by


class CommandSerializer(serializers.Serializer[object]):
    """Describes ``commands.CommandOptions`` to the schema."""

    command_id = serializers.UUIDField(
        required=False, help_text="Repeats an earlier command's answer; default: a new one."
    )
    deadline_seconds = serializers.FloatField(required=False, min_value=0.1, max_value=30, help_text="Default 5.")


class ExtendSerializer(CommandSerializer):
    ttl_seconds = serializers.IntegerField(min_value=10, max_value=MAX_TTL_SECONDS)
