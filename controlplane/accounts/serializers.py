"""How tokens and the audit trail look in REST."""

from typing import Any

from django.utils import timezone
from rest_framework import serializers

from controlplane.accounts.models import ApiToken, AuditEntry, RouterKey, TokenKind

TENANT_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*\Z"
"""What a policy's scope and a span can name."""


class ApiTokenSerializer(serializers.ModelSerializer[ApiToken]):
    class Meta:
        model = ApiToken
        fields = [
            "id",
            "kind",
            "name",
            "auto_approve",
            "created_at",
            "created_by",
            "last_used_at",
            "expires_at",
            "revoked_at",
        ]


class NewApiTokenSerializer(ApiTokenSerializer):
    secret = serializers.CharField(help_text="Shown this once.")

    class Meta(ApiTokenSerializer.Meta):
        fields = [*ApiTokenSerializer.Meta.fields, "secret"]


class CreateTokenSerializer(serializers.Serializer[Any]):
    kind = serializers.ChoiceField(choices=TokenKind.choices)
    name = serializers.CharField(max_length=128)
    auto_approve = serializers.BooleanField(default=False, help_text="Only for agents: engines need no approval.")
    expires_at = serializers.DateTimeField(default=None, allow_null=True)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if attrs["auto_approve"] and attrs["kind"] != TokenKind.AGENT:
            raise serializers.ValidationError({"auto_approve": "Only an agent's token can approve its engine."})
        if attrs["expires_at"] and attrs["expires_at"] <= timezone.now():
            raise serializers.ValidationError({"expires_at": "This time has passed."})
        return attrs


class RouterKeySerializer(serializers.ModelSerializer[RouterKey]):
    class Meta:
        model = RouterKey
        fields = ["id", "tenant", "name", "operator", "created_at", "revoked_at"]


class NewRouterKeySerializer(RouterKeySerializer):
    secret = serializers.CharField(help_text="Shown this once.")

    class Meta(RouterKeySerializer.Meta):
        fields = [*RouterKeySerializer.Meta.fields, "secret"]


class CreateRouterKeySerializer(serializers.Serializer[Any]):
    tenant = serializers.RegexField(TENANT_PATTERN, max_length=128)
    name = serializers.CharField(max_length=128)
    operator = serializers.BooleanField(default=False, help_text="Routers tell its holder how turns were placed.")


class AuditEntrySerializer(serializers.ModelSerializer[AuditEntry]):
    class Meta:
        model = AuditEntry
        fields = ["id", "at", "actor", "action", "object_kind", "object_id", "before", "after"]
