"""Reads of users, tokens and the audit trail."""

from django.db.models import Q, QuerySet
from django.utils import timezone

from controlplane.accounts.models import ApiToken, AuditEntry, RouterKey, TokenKind
from controlplane.accounts.secrets import sha256_of


def tokens() -> QuerySet[ApiToken]:
    return ApiToken.objects.all()


def audit_entries() -> QuerySet[AuditEntry]:
    return AuditEntry.objects.all()


def valid_token(secret: str, *kinds: TokenKind) -> ApiToken | None:
    """The unrevoked, unexpired token of one of ``kinds`` with this secret.

    Looked up by hash: what an attacker could time is a prefix of a hash that he can't steer.
    """
    unexpired = Q(expires_at__isnull=True) | Q(expires_at__gt=timezone.now())
    return ApiToken.objects.filter(unexpired, sha256=sha256_of(secret), kind__in=kinds, revoked_at=None).first()


def all_router_keys() -> QuerySet[RouterKey]:
    return RouterKey.objects.all()


def router_keys() -> QuerySet[RouterKey]:
    """Keys that open the routers now."""
    return RouterKey.objects.filter(revoked_at=None).order_by("id")
