"""Numbered policy revisions and who has confirmed them."""

from typing import Any, ClassVar

from django.db import models
from django.utils import timezone

from connector.identity import uuid7

MAX_SCOPE_CHARS = 220


class PolicyRevision(models.Model):
    """One change of one scope; never changed, never deleted.

    ``values`` are all that the scope sets from this revision on: the scope's newest revision is its whole patch, and
    nothing older needs to be read. Numbers are fleet-wide, have no gaps and commit in their order.
    """

    number = models.PositiveIntegerField(primary_key=True)
    scope = models.CharField(max_length=MAX_SCOPE_CHARS)
    values = models.JSONField()
    diff = models.JSONField(help_text="List of field, before, after; null means inherited.")
    author = models.CharField(max_length=200)
    reason = models.CharField(max_length=500, default="")
    rolled_back = models.PositiveIntegerField(null=True, help_text="The revision that this one undoes.")
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        indexes: ClassVar = [models.Index(fields=["scope", "-number"], name="policy_newest_of_scope")]

    def __str__(self) -> str:
        return f"revision {self.number} of {self.scope}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        if not self._state.adding:
            raise TypeError("a policy revision is immutable; publish another one")
        super().save(*args, **kwargs)


class EnforcerKind(models.TextChoices):
    ENGINE = "engine"
    ROUTER = "router"


class PolicyAck(models.Model):
    """What one enforcer was told of one revision and what it read back.

    Made when the revision is published, or when an enforcer that was away is told; sent again, it waits again.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    revision = models.ForeignKey(PolicyRevision, models.CASCADE, related_name="acks")
    kind = models.CharField(max_length=16, choices=EnforcerKind)
    enforcer = models.CharField(max_length=128)
    expected = models.JSONField()
    values = models.JSONField(null=True, help_text="As read back by the enforcer; null until it answers.")
    unsupported_fields = models.JSONField(default=list)
    sent_at = models.DateTimeField(default=timezone.now)
    acked_at = models.DateTimeField(null=True)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["revision", "kind", "enforcer"], name="ack_once_per_enforcer"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.enforcer} on revision {self.revision_id}"
