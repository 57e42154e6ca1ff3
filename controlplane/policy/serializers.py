"""How policy looks in REST."""

from typing import Any

from django.utils import timezone
from rest_framework import serializers

from connector.protocol import PolicyPatch
from controlplane.policy import selectors
from controlplane.policy.models import MAX_SCOPE_CHARS, EnforcerKind, PolicyAck, PolicyRevision


class PolicyValuesSerializer(serializers.Serializer[Any]):
    """Documents the fields; ``connector.protocol`` checks them."""

    bidirectional_kv_xfer = serializers.BooleanField(required=False, allow_null=True)
    kv_recompute_threshold = serializers.IntegerField(required=False, allow_null=True, min_value=0, help_text="Tokens.")
    decoder_kv_blocks_ttl = serializers.IntegerField(
        required=False, allow_null=True, min_value=0, help_text="Seconds; 0, or at least 10."
    )
    kv_pull_deadline = serializers.FloatField(
        required=False, allow_null=True, max_value=3600, help_text="Seconds; more than 0."
    )
    kv_lease_duration = serializers.IntegerField(
        required=False, allow_null=True, min_value=1, max_value=86400, help_text="Seconds."
    )
    pinned_kv_limit = serializers.FloatField(
        required=False, allow_null=True, min_value=0, max_value=1, help_text="Share of D's KV blocks."
    )
    release_on_read = serializers.BooleanField(required=False, allow_null=True)
    decode_local_max_new_tokens = serializers.IntegerField(
        required=False, allow_null=True, min_value=0, help_text="Tokens."
    )
    trace_sampling = serializers.FloatField(required=False, allow_null=True, min_value=0, max_value=1)

    def to_representation(self, instance: dict[str, Any]) -> dict[str, Any]:
        """Only what is set: an absent field is inherited."""
        return {field: instance[field] for field in PolicyPatch.__struct_fields__ if field in instance}


class FieldChangeSerializer(serializers.Serializer[Any]):
    field = serializers.CharField()
    before = serializers.JSONField(allow_null=True)
    after = serializers.JSONField(allow_null=True)


class PolicyAckSerializer(serializers.ModelSerializer[PolicyAck]):
    """``latency_ms``: from telling the enforcer to its answer, both by the control plane's clock."""

    kind = serializers.ChoiceField(choices=EnforcerKind.choices, read_only=True)
    state = serializers.SerializerMethodField()
    revision = serializers.IntegerField(source="revision_id")
    values = PolicyValuesSerializer(allow_null=True)
    expected = PolicyValuesSerializer()
    drifted_fields = serializers.SerializerMethodField()
    unsupported_fields = serializers.ListField(child=serializers.CharField())
    latency_ms = serializers.SerializerMethodField()

    class Meta:
        model = PolicyAck
        fields = [
            "enforcer",
            "kind",
            "state",
            "revision",
            "values",
            "expected",
            "drifted_fields",
            "unsupported_fields",
            "sent_at",
            "acked_at",
            "latency_ms",
        ]

    def get_state(self, ack: PolicyAck) -> selectors.AckState:
        return selectors.ack_state(ack, now=timezone.now())

    def get_drifted_fields(self, ack: PolicyAck) -> list[str]:
        return list(selectors.ack_drift(ack))

    def get_latency_ms(self, ack: PolicyAck) -> float | None:
        return (ack.acked_at - ack.sent_at).total_seconds() * 1000 if ack.acked_at else None


class PolicyRevisionSerializer(serializers.ModelSerializer[PolicyRevision]):
    values = PolicyValuesSerializer()
    diff = FieldChangeSerializer(many=True)

    class Meta:
        model = PolicyRevision
        fields = ["number", "scope", "values", "diff", "author", "reason", "rolled_back", "created_at"]


class PolicyRevisionDetailSerializer(PolicyRevisionSerializer):
    acks = PolicyAckSerializer(many=True)

    class Meta(PolicyRevisionSerializer.Meta):
        fields = [*PolicyRevisionSerializer.Meta.fields, "acks"]


class PublishSerializer(serializers.Serializer[Any]):
    """``values`` are laid over what the scope sets already; null gives a field back to the wider scope."""

    scope = serializers.CharField(max_length=MAX_SCOPE_CHARS, default="fleet")
    values = PolicyValuesSerializer()
    reason = serializers.CharField(max_length=500, default="", allow_blank=True)


class RollbackSerializer(serializers.Serializer[Any]):
    reason = serializers.CharField(max_length=500, default="", allow_blank=True)


class EffectivePolicySerializer(serializers.Serializer[Any]):
    """``sources`` names, for each field, the scope that sets it; ``default`` where none does."""

    revision = serializers.IntegerField()
    scopes = serializers.ListField(child=serializers.CharField())
    values = PolicyValuesSerializer()
    sources = serializers.DictField(child=serializers.CharField())
