"""REST of tokens and the audit trail, and the browser's login."""

from typing import Any

from django.contrib.auth.views import LoginView
from django.http import HttpRequest, HttpResponse
from drf_spectacular.utils import extend_schema
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import ReadOnlyModelViewSet

from controlplane.accounts import actions, attempts, selectors
from controlplane.accounts.authentication import actor_of
from controlplane.accounts.models import ApiToken, AuditEntry, RouterKey
from controlplane.accounts.serializers import (
    ApiTokenSerializer,
    AuditEntrySerializer,
    CreateRouterKeySerializer,
    CreateTokenSerializer,
    NewApiTokenSerializer,
    NewRouterKeySerializer,
    RouterKeySerializer,
)


class TokenViewSet(ReadOnlyModelViewSet[ApiToken]):
    queryset = selectors.tokens()
    serializer_class = ApiTokenSerializer
    filterset_fields = ["kind", "name"]

    @extend_schema(request=CreateTokenSerializer, responses={201: NewApiTokenSerializer})
    def create(self, request: Request) -> Response:
        """Makes a token; its secret is in this answer and nowhere else."""
        body = CreateTokenSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        token, secret = actions.create_token(**body.validated_data, actor=actor_of(request))
        answer = Response({**ApiTokenSerializer(token).data, "secret": secret}, status=201)
        answer.headers["Cache-Control"] = "no-store"
        return answer

    @extend_schema(request=None, responses=ApiTokenSerializer)
    @action(detail=True, methods=["post"])
    def revoke(self, request: Request, pk: str) -> Response:
        """Shuts the token out for good, and closes the sockets that came in with it."""
        return Response(ApiTokenSerializer(actions.revoke_token(self.get_object(), actor=actor_of(request))).data)


class RouterKeyViewSet(ReadOnlyModelViewSet[RouterKey]):
    queryset = selectors.all_router_keys()
    serializer_class = RouterKeySerializer
    filterset_fields = ["tenant", "name", "operator"]

    @extend_schema(request=CreateRouterKeySerializer, responses={201: NewRouterKeySerializer})
    def create(self, request: Request) -> Response:
        """Makes an API key of a tenant for the routers; its secret is in this answer and nowhere else."""
        body = CreateRouterKeySerializer(data=request.data)
        body.is_valid(raise_exception=True)
        key, secret = actions.create_router_key(**body.validated_data, actor=actor_of(request))
        answer = Response({**RouterKeySerializer(key).data, "secret": secret}, status=201)
        answer.headers["Cache-Control"] = "no-store"
        return answer

    @extend_schema(request=None, responses=RouterKeySerializer)
    @action(detail=True, methods=["post"])
    def revoke(self, request: Request, pk: str) -> Response:
        """Shuts the key out for good, at every router that is connected."""
        return Response(RouterKeySerializer(actions.revoke_router_key(self.get_object(), actor=actor_of(request))).data)


class AuditViewSet(ReadOnlyModelViewSet[AuditEntry]):
    queryset = selectors.audit_entries()
    serializer_class = AuditEntrySerializer
    filterset_fields = ["actor", "action", "object_kind", "object_id"]


class LimitedLoginView(LoginView):
    """The login page; guessing is slowed per address, and per address and name."""

    template_name = "accounts/login.html"
    redirect_authenticated_user = True

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        username, address = request.POST.get("username", ""), request.META.get("REMOTE_ADDR", "")
        if wait_seconds := attempts.seconds_to_wait(username, address):
            context = self.get_context_data(wait_seconds=wait_seconds)
            response = self.render_to_response(context, status=429)
            response.headers["Retry-After"] = str(wait_seconds)
            return response
        response = super().post(request, *args, **kwargs)
        if not request.user.is_authenticated:
            attempts.note_failure(username, address)
        return response
