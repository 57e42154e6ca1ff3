"""REST of policy."""

from collections.abc import Mapping
from typing import Any

import msgspec
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import ReadOnlyModelViewSet

from controlplane.accounts.authentication import actor_of
from controlplane.errors import FieldError, InvalidInputError
from controlplane.fleet.models import Engine
from controlplane.pagination import TimeOrderedPagination
from controlplane.policy import actions, selectors
from controlplane.policy.effective import Scope, engine_scopes, parse_scope
from controlplane.policy.models import PolicyRevision
from controlplane.policy.serializers import (
    EffectivePolicySerializer,
    PolicyRevisionDetailSerializer,
    PolicyRevisionSerializer,
    PublishSerializer,
    RollbackSerializer,
)

SUBJECTS = ("model", "role", "engine", "tenant", "session")


class RevisionPagination(TimeOrderedPagination):
    """Newest revision first."""

    ordering = ("-number",)


class PublishRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of a publication; its values are checked where they are laid over the scope's."""

    scope: str = "fleet"
    values: dict[str, Any]
    reason: str = ""

    def __post_init__(self) -> None:
        if len(self.reason) > 500:
            raise ValueError("reason must have at most 500 characters")


class RollbackRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    reason: str = ""

    def __post_init__(self) -> None:
        if len(self.reason) > 500:
            raise ValueError("reason must have at most 500 characters")


class PolicyViewSet(ReadOnlyModelViewSet[PolicyRevision]):
    queryset = selectors.revisions()
    serializer_class = PolicyRevisionSerializer
    pagination_class = RevisionPagination
    filterset_fields = ["scope"]
    lookup_field = "number"
    lookup_value_regex = "[0-9]{1,9}"

    @extend_schema(request=PublishSerializer, responses={201: PolicyRevisionDetailSerializer})
    def create(self, request: Request) -> Response:
        """Publishes a revision; every enforcer is told and has 3 s to confirm, see ``acks``."""
        body = msgspec.convert(request.data, PublishRequest)
        revision = actions.publish_policy(
            scope=body.scope, values=body.values, author=actor_of(request), reason=body.reason
        )
        return Response(PolicyRevisionDetailSerializer(self._with_acks(revision.number)).data, status=201)

    @extend_schema(responses=PolicyRevisionDetailSerializer)
    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """One revision and how far each enforcer is with it."""
        return Response(PolicyRevisionDetailSerializer(self._with_acks(int(kwargs["number"]))).data)

    @extend_schema(request=RollbackSerializer, responses={201: PolicyRevisionDetailSerializer})
    @action(detail=True, methods=["post"])
    def rollback(self, request: Request, number: str) -> Response:
        """Publishes what the scope set before this revision; only the scope's newest can be rolled back."""
        body = msgspec.convert(request.data or {}, RollbackRequest)
        revision = actions.rollback_policy(int(number), author=actor_of(request), reason=body.reason)
        return Response(PolicyRevisionDetailSerializer(self._with_acks(revision.number)).data, status=201)

    @extend_schema(
        responses=EffectivePolicySerializer,
        parameters=[OpenApiParameter(subject, str, required=False) for subject in SUBJECTS],
        filters=False,
    )
    @action(detail=False, pagination_class=None)
    def effective(self, request: Request) -> Response:
        """The values that hold for an engine, tenant or session, or several of them at once."""
        scopes = _scopes(request.query_params)
        book = selectors.current_book()
        fleet = Scope("fleet")
        values = book.effective(*scopes)
        found = {
            "revision": book.number,
            "scopes": [str(scope) for scope in (fleet, *scopes)],
            "values": msgspec.to_builtins(values),
            "sources": book.sources(*scopes),
        }
        return Response(found)

    def _with_acks(self, number: int) -> PolicyRevision:
        return selectors.revisions().prefetch_related("acks").get(number=number)


def _scopes(query: Mapping[str, str]) -> list[Scope]:
    """The scopes that a query names; an engine brings its own model and role along."""
    scopes: list[Scope] = []
    for kind in SUBJECTS:
        if subject := query.get(kind, ""):
            try:
                scopes.append(parse_scope(f"{kind}:{subject}"))
            except ValueError as error:
                raise InvalidInputError(FieldError(kind, str(error))) from None
    for scope in [scope for scope in scopes if scope.kind == "engine"]:
        engine = Engine.objects.filter(name=scope.subject).first()
        if engine is None:
            raise InvalidInputError(FieldError("engine", "there is no engine of this name"))
        own = engine_scopes(name=engine.name, model=engine.model, role=engine.role)
        scopes = [*(known for known in own if known.kind not in {s.kind for s in scopes}), *scopes]
    return scopes
