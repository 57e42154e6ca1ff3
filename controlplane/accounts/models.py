"""Who may come in, and the trail of what they changed."""

from typing import ClassVar

from django.contrib.auth.models import AbstractUser
from django.db import models
from django.utils import timezone

from connector.identity import uuid7


class User(AbstractUser):
    """A person who logs in by browser. Rows are deactivated, never deleted: the audit trail names them."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)


class TokenKind(models.TextChoices):
    """Each kind opens one door only: REST, the agents' socket, the routers' socket, the span receiver."""

    ADMIN = "admin"
    AGENT = "agent"
    ROUTER = "router"
    TELEMETRY = "telemetry"


class ApiToken(models.Model):
    """A bearer secret of which only the SHA-256 is kept. A revoked one's row stays, for old audit entries name it."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    kind = models.CharField(max_length=16, choices=TokenKind)
    name = models.CharField(max_length=128)
    sha256 = models.CharField(max_length=64, unique=True)
    auto_approve = models.BooleanField(default=False, help_text="Engines enrolled with it need no approval.")
    created_at = models.DateTimeField(default=timezone.now)
    created_by = models.CharField(max_length=200)
    last_used_at = models.DateTimeField(null=True)
    expires_at = models.DateTimeField(null=True)
    revoked_at = models.DateTimeField(null=True)

    class Meta:
        constraints: ClassVar = [
            models.CheckConstraint(condition=models.Q(kind__in=TokenKind.values), name="token_kind_is_known"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} token {self.name}"


class RouterKey(models.Model):
    """An API key of a router's clients, bound to one tenant; routers receive the hashes, never the control plane."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    tenant = models.CharField(max_length=128)
    name = models.CharField(max_length=128)
    sha256 = models.CharField(max_length=64, unique=True)
    operator = models.BooleanField(default=False, help_text="Routers tell its holder how turns were placed.")
    created_at = models.DateTimeField(default=timezone.now)
    revoked_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return f"router key {self.name} of tenant {self.tenant}"


class AuditEntry(models.Model):
    """One change by one actor, written in the transaction that made it; never changed, never deleted."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    at = models.DateTimeField(default=timezone.now)
    actor = models.CharField(max_length=200)
    action = models.CharField(max_length=64)
    object_kind = models.CharField(max_length=32)
    object_id = models.CharField(max_length=200)
    before = models.JSONField(null=True)
    after = models.JSONField(null=True)

    class Meta:
        indexes: ClassVar = [models.Index(fields=["object_kind", "object_id"], name="audit_by_object")]

    def __str__(self) -> str:
        return f"{self.actor} {self.action} {self.object_kind} {self.object_id}"
