"""Who a REST request is from: a bearer token of kind admin, or a browser's session."""

from typing import Any

from django.contrib.auth.models import AnonymousUser
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from controlplane.accounts import actions, selectors
from controlplane.accounts.models import ApiToken, TokenKind
from controlplane.accounts.secrets import bearer_secret


class TokenPrincipal(AnonymousUser):
    """What ``request.user`` is for a token: authenticated, but no person and in no table of users."""

    def __init__(self, token: ApiToken) -> None:
        super().__init__()
        self.token = token
        self.username = token.name  # type: ignore[assignment]

    @property
    def is_authenticated(self) -> bool:  # type: ignore[override]
        return True

    @property
    def is_anonymous(self) -> bool:  # type: ignore[override]
        return False


class BearerAuthentication(BaseAuthentication):
    """Accepts ``Authorization: Bearer`` with a token of one of ``kinds``; a wrong one is a 401, never anonymous."""

    kinds: tuple[TokenKind, ...] = (TokenKind.ADMIN,)

    def authenticate(self, request: Request) -> tuple[Any, ApiToken] | None:
        header = request.headers.get("Authorization")
        if not header:
            return None
        secret = bearer_secret(header)
        token = selectors.valid_token(secret, *self.kinds) if secret else None
        if token is None:
            raise AuthenticationFailed("The bearer token is not valid here.")
        actions.note_token_used(token)
        return TokenPrincipal(token), token

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


class TelemetryAuthentication(BearerAuthentication):
    """For the span receiver: agents and routers export with their own tokens."""

    kinds = (TokenKind.TELEMETRY, TokenKind.AGENT, TokenKind.ROUTER, TokenKind.ADMIN)


class BrowserSessionAuthentication(SessionAuthentication):
    """The session cookie, with CSRF enforced."""


class BearerScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = "controlplane.accounts.authentication.BearerAuthentication"
    match_subclasses = True
    name = "bearer"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer"}


class BrowserSessionScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = "controlplane.accounts.authentication.BrowserSessionAuthentication"
    name = "session"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {"type": "apiKey", "in": "cookie", "name": "sessionid"}


def actor_of(request: Request) -> str:
    """How the audit trail names who asks: ``token:<name>`` or ``user:<name>``."""
    kind = "token" if isinstance(request.user, TokenPrincipal) else "user"
    return f"{kind}:{request.user.username}"
