"""Every change of tokens, keys and the audit trail."""

from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.utils import timezone

from controlplane.accounts.models import ApiToken, AuditEntry, RouterKey, TokenKind, User
from controlplane.accounts.secrets import new_secret, sha256_of
from controlplane.broadcast import broadcast_on_commit
from controlplane.fleet.groups import AGENTS, ROUTERS, announce_fleet_changed

LAST_USED_RESOLUTION = timedelta(minutes=1)


def record_audit(
    *, actor: str, action: str, object_kind: str, object_id: object, before: Any = None, after: Any = None
) -> AuditEntry:
    """Writes what an actor did, in the caller's transaction; ``before`` and ``after`` are JSON of what changed."""
    return AuditEntry.objects.create(
        actor=actor, action=action, object_kind=object_kind, object_id=str(object_id), before=before, after=after
    )


def note_token_used(token: ApiToken) -> None:
    """Keeps ``last_used_at`` to the minute, so that a busy token doesn't write a row per request."""
    now = timezone.now()
    if token.last_used_at is None or now - token.last_used_at > LAST_USED_RESOLUTION:
        ApiToken.objects.filter(pk=token.pk).update(last_used_at=now)


@transaction.atomic
def create_token(
    *, kind: TokenKind, name: str, actor: str, auto_approve: bool = False, expires_at: datetime | None = None
) -> tuple[ApiToken, str]:
    """The row and the secret, which can't be had again."""
    secret = new_secret(kind)
    token = ApiToken.objects.create(
        kind=kind,
        name=name,
        sha256=sha256_of(secret),
        created_by=actor,
        auto_approve=auto_approve,
        expires_at=expires_at,
    )
    after = {"kind": kind, "name": name, "auto_approve": auto_approve}
    record_audit(actor=actor, action="create", object_kind="token", object_id=token.pk, after=after)
    return token, secret


@transaction.atomic
def revoke_token(token: ApiToken, *, actor: str) -> ApiToken:
    """Closes the door for new requests and handshakes, and the sockets that came in by it; once is enough."""
    token = ApiToken.objects.select_for_update().get(pk=token.pk)
    if token.revoked_at is None:
        token.revoked_at = timezone.now()
        token.save(update_fields=["revoked_at"])
        after = {"revoked_at": token.revoked_at.isoformat()}
        record_audit(actor=actor, action="revoke", object_kind="token", object_id=token.pk, after=after)
        for group in (AGENTS, ROUTERS):
            broadcast_on_commit(group, {"type": "token.revoked", "token_id": str(token.pk)})
    return token


@transaction.atomic
def register_token(*, kind: TokenKind, name: str, secret: str, actor: str, auto_approve: bool) -> bool:
    """Makes a secret that already exists in a file valid; True when that needed a change."""
    token, created = ApiToken.objects.get_or_create(
        sha256=sha256_of(secret),
        defaults={"kind": kind, "name": name, "created_by": actor, "auto_approve": auto_approve},
    )
    if created:
        record_audit(actor=actor, action="register", object_kind="token", object_id=token.pk, after={"kind": kind})
    elif token.revoked_at is not None:
        raise ValueError(f"the secret of {token} was revoked; delete its file to make a new one")
    return created


@transaction.atomic
def register_router_key(*, tenant: str, name: str, secret: str, actor: str) -> bool:
    """Makes an API key of a router's clients valid for ``tenant``; True when that needed a change."""
    key, created = RouterKey.objects.get_or_create(sha256=sha256_of(secret), defaults={"tenant": tenant, "name": name})
    if created:
        record_audit(
            actor=actor, action="register", object_kind="router_key", object_id=key.pk, after={"tenant": tenant}
        )
        announce_fleet_changed()
    return created


@transaction.atomic
def create_router_key(*, tenant: str, name: str, operator: bool, actor: str) -> tuple[RouterKey, str]:
    """The row and the secret, which can't be had again. Routers know it as soon as they hear of it."""
    secret = new_secret("api")
    key = RouterKey.objects.create(tenant=tenant, name=name, operator=operator, sha256=sha256_of(secret))
    after = {"tenant": tenant, "name": name, "operator": operator}
    record_audit(actor=actor, action="create", object_kind="router_key", object_id=key.pk, after=after)
    announce_fleet_changed()
    return key, secret


@transaction.atomic
def revoke_router_key(key: RouterKey, *, actor: str) -> RouterKey:
    """Routers refuse it as soon as they hear of it; once is enough."""
    key = RouterKey.objects.select_for_update().get(pk=key.pk)
    if key.revoked_at is None:
        key.revoked_at = timezone.now()
        key.save(update_fields=["revoked_at"])
        after = {"revoked_at": key.revoked_at.isoformat()}
        record_audit(actor=actor, action="revoke", object_kind="router_key", object_id=key.pk, after=after)
        announce_fleet_changed()
    return key


@transaction.atomic
def ensure_login(*, username: str, password: str, actor: str) -> bool:
    """A person who can log in with this password; True when that needed a change."""
    user = User.objects.select_for_update().filter(username=username).first()
    if user is not None and user.is_active and user.check_password(password):
        return False
    user = user or User(username=username, is_staff=True, is_superuser=True)
    user.is_active = True
    user.set_password(password)
    user.save()
    record_audit(actor=actor, action="set_password", object_kind="user", object_id=username)
    return True
