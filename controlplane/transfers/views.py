"""REST of transfers."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.decorators import action
from rest_framework.mixins import ListModelMixin
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet, ReadOnlyModelViewSet

from controlplane.pagination import TimeOrderedPagination
from controlplane.transfers import selectors
from controlplane.transfers.filters import PairMinuteFilter, TransferFilter
from controlplane.transfers.models import PairMinute, Transfer
from controlplane.transfers.serializers import (
    PairMinuteSerializer,
    SummarySerializer,
    TotalsSerializer,
    TransferSerializer,
)

SUMMED = ("count", "tokens", "blocks", "bytes")


class TransferPagination(TimeOrderedPagination):
    """Latest start first."""

    ordering: Any = ("-started_at", "-id")


class MinutePagination(TimeOrderedPagination):
    """Latest minute first."""

    ordering: Any = ("-minute", "source", "target", "direction")
    max_page_size = 2000


class TransferViewSet(ReadOnlyModelViewSet[Transfer]):
    queryset = selectors.transfers()
    serializer_class = TransferSerializer
    pagination_class = TransferPagination
    filterset_class = TransferFilter
    lookup_value_regex = "[^/]+"

    @extend_schema(responses=SummarySerializer)
    @action(detail=False, pagination_class=None)
    def summary(self, request: Request) -> Response:
        """Exact sums over the transfers that the filters let through: all of them without a filter."""
        found = self.filter_queryset(self.get_queryset())
        groups = TotalsSerializer(selectors.totals_by_outcome(found), many=True).data
        return Response({name: sum(group[name] for group in groups) for name in SUMMED} | {"groups": groups})


class PairMinuteViewSet(ListModelMixin, GenericViewSet[PairMinute]):
    queryset = selectors.minutes()
    serializer_class = PairMinuteSerializer
    pagination_class = MinutePagination
    filterset_class = PairMinuteFilter
