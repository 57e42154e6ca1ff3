"""REST of sessions, turns and placements."""

from typing import Any

import msgspec
from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework.decorators import action
from rest_framework.mixins import ListModelMixin
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet, ReadOnlyModelViewSet

from controlplane.accounts.authentication import actor_of
from controlplane.fleet.serializers import OperationSerializer
from controlplane.fleet.views import operation_response
from controlplane.pagination import TimeOrderedPagination
from controlplane.placement import commands, selectors
from controlplane.placement.filters import PlacementFilter, SessionFilter
from controlplane.placement.models import Placement, Session, Turn
from controlplane.placement.serializers import (
    CommandSerializer,
    ExtendSerializer,
    PlacementSerializer,
    SessionSerializer,
    TurnSerializer,
)

ID_PATTERN = "[^/]+"
ANSWERS = {200: OperationSerializer, 202: OperationSerializer}


class SessionPagination(TimeOrderedPagination):
    """Last active first."""

    ordering: Any = ("-last_turn_at", "-id")


class TurnPagination(TimeOrderedPagination):
    """Latest first."""

    ordering: Any = ("-started_at", "-id")


class PlacementPagination(TimeOrderedPagination):
    """Latest grant first."""

    ordering: Any = ("-granted_at", "-id")


class SessionViewSet(ReadOnlyModelViewSet[Session]):
    queryset = selectors.sessions()
    serializer_class = SessionSerializer
    pagination_class = SessionPagination
    filterset_class = SessionFilter
    lookup_value_regex = ID_PATTERN


class TurnViewSet(ListModelMixin, GenericViewSet[Turn]):
    """The turns of one session, latest first."""

    serializer_class = TurnSerializer
    pagination_class = TurnPagination
    filter_backends = []

    def get_queryset(self) -> QuerySet[Turn]:
        if getattr(self, "swagger_fake_view", False):  # the schema is drawn without a session
            return Turn.objects.none()
        session = Session.objects.only("pk").get(pk=self.kwargs["session_id"])
        return selectors.turns_of_session(session.pk)


class PlacementViewSet(ReadOnlyModelViewSet[Placement]):
    queryset = selectors.placements()
    serializer_class = PlacementSerializer
    pagination_class = PlacementPagination
    filterset_class = PlacementFilter
    lookup_value_regex = ID_PATTERN

    @extend_schema(request=CommandSerializer, responses=ANSWERS)
    @action(detail=True, methods=["post"])
    def release(self, request: Request, pk: str) -> Response:
        """Lets go of the blocks at once. Answers what happened at the engine, or 202 while that isn't known."""
        options = _options(request, commands.CommandOptions)
        return operation_response(commands.release_placement(pk, options, actor=actor_of(request)))

    @extend_schema(request=ExtendSerializer, responses=ANSWERS)
    @action(detail=True, methods=["post"])
    def extend(self, request: Request, pk: str) -> Response:
        """Holds on for so many seconds from now, and takes a pin back."""
        options = _options(request, commands.ExtendOptions)
        return operation_response(commands.extend_placement(pk, options, actor=actor_of(request)))

    @extend_schema(request=CommandSerializer, responses=ANSWERS)
    @action(detail=True, methods=["post"])
    def pin(self, request: Request, pk: str) -> Response:
        """Holds on without end, within the engine's pinned_kv_limit."""
        options = _options(request, commands.CommandOptions)
        return operation_response(commands.pin_placement(pk, options, actor=actor_of(request)))


def _options(request: Request, kind: type[Any]) -> Any:
    return msgspec.convert(request.data or {}, kind)
