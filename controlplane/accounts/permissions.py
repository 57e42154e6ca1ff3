"""What an authenticated request may do."""

from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from controlplane.accounts.models import ApiToken, TokenKind


class IsOperator(BasePermission):
    """A logged-in person, or a token of kind admin."""

    def has_permission(self, request: Request, view: object) -> bool:
        if isinstance(request.auth, ApiToken):
            return request.auth.kind == TokenKind.ADMIN
        return request.user.is_authenticated


class IsExporter(BasePermission):
    """Any valid token of a kind that may send spans; the authentication has checked the kind."""

    def has_permission(self, request: Request, view: object) -> bool:
        return isinstance(request.auth, ApiToken)
