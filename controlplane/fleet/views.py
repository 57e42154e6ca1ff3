"""REST of the fleet."""

import msgspec
from drf_spectacular.utils import extend_schema
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import ReadOnlyModelViewSet

from controlplane.accounts.authentication import actor_of
from controlplane.fleet import actions, commands, selectors
from controlplane.fleet.drains import DrainOptions
from controlplane.fleet.filters import EngineFilter, OperationFilter, PairFilter
from controlplane.fleet.models import Agent, Engine, Operation, OperationState, Pair, Router
from controlplane.fleet.serializers import (
    AgentSerializer,
    DrainOptionsSerializer,
    EngineSerializer,
    OperationSerializer,
    PairSerializer,
    ResetCacheSerializer,
    RouterSerializer,
)
from controlplane.pagination import TimeOrderedPagination

NAME_PATTERN = "[^/]+"


class AgentPagination(TimeOrderedPagination):
    """An agent's key is its engine's id."""

    ordering = ("-engine_id",)


class EngineViewSet(ReadOnlyModelViewSet[Engine]):
    queryset = selectors.engines()
    serializer_class = EngineSerializer
    filterset_class = EngineFilter
    lookup_field = "name"
    lookup_value_regex = NAME_PATTERN

    @extend_schema(responses={204: None})
    def destroy(self, request: Request, name: str) -> Response:
        """Takes an engine that was shut down off the lists; 409 while its agent is connected."""
        actions.forget_engine(name, actor=actor_of(request))
        return Response(status=204)

    @extend_schema(request=None, responses=EngineSerializer)
    @action(detail=True, methods=["post"])
    def approve(self, request: Request, name: str) -> Response:
        """Lets an enrolled engine take part."""
        return Response(self.get_serializer(actions.approve_engine(name, actor=actor_of(request))).data)

    @extend_schema(request=DrainOptionsSerializer, responses=EngineSerializer)
    @action(detail=True, methods=["post"])
    def drain(self, request: Request, name: str) -> Response:
        """Sends the engine no turn; sessions take their KV along to others, and what stays is let go.

        ``drain`` of the engine tells how far it is. Asking again changes the options that are given.
        """
        options = msgspec.convert(request.data or {}, DrainOptions)
        engine = actions.drain_engine(name, draining=True, actor=actor_of(request), options=options)
        return Response(self.get_serializer(engine).data)

    @extend_schema(request=ResetCacheSerializer, responses={200: OperationSerializer, 202: OperationSerializer})
    @action(detail=True, methods=["post"], url_path="reset-cache")
    def reset_cache(self, request: Request, name: str) -> Response:
        """Releases the engine's leases, empties its prefix cache, and answers what really happened there.

        The outcome is ``reset``, or ``failed`` with what still holds blocks; 202 while that isn't known.
        """
        options = msgspec.convert(request.data or {}, commands.ResetOptions)
        return operation_response(commands.reset_cache(name, options, actor=actor_of(request)))

    @extend_schema(request=None, responses=EngineSerializer)
    @action(detail=True, methods=["post"])
    def undrain(self, request: Request, name: str) -> Response:
        """Takes a drain back."""
        return Response(self.get_serializer(actions.drain_engine(name, draining=False, actor=actor_of(request))).data)


class AgentViewSet(ReadOnlyModelViewSet[Agent]):
    queryset = selectors.agents()
    serializer_class = AgentSerializer
    pagination_class = AgentPagination
    filterset_fields = ["connected"]
    lookup_field = "engine__name"
    lookup_url_kwarg = "engine"
    lookup_value_regex = NAME_PATTERN


class RouterViewSet(ReadOnlyModelViewSet[Router]):
    queryset = selectors.routers()
    serializer_class = RouterSerializer
    filterset_fields = ["connected"]
    lookup_field = "name"
    lookup_value_regex = NAME_PATTERN


class PairViewSet(ReadOnlyModelViewSet[Pair]):
    queryset = selectors.pairs()
    serializer_class = PairSerializer
    filterset_class = PairFilter


class OperationViewSet(ReadOnlyModelViewSet[Operation]):
    queryset = selectors.operations()
    serializer_class = OperationSerializer
    filterset_class = OperationFilter


def operation_response(operation: Operation) -> Response:
    """What a command's view answers: 200 with what happened at the engine, 202 while that isn't known."""
    is_settled = operation.state in (OperationState.DONE, OperationState.FAILED)
    return Response(OperationSerializer(operation).data, status=200 if is_settled else 202)
