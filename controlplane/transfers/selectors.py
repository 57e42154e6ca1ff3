"""Reads of transfers and their sums."""

from collections.abc import Mapping

from django.db.models import Count, Max, QuerySet, Sum

from controlplane.transfers.models import PairMinute, Transfer

Totals = Mapping[str, object]


def transfers() -> QuerySet[Transfer]:
    return Transfer.objects.all()


def minutes() -> QuerySet[PairMinute]:
    return PairMinute.objects.all()


def totals_by_outcome(found: QuerySet[Transfer]) -> list[Totals]:
    """Exact sums per direction and outcome, from the rows themselves."""
    groups = found.order_by().values("direction", "outcome").order_by("direction", "outcome")
    return list(
        groups.annotate(
            count=Count("id"),
            tokens_sum=Sum("tokens"),
            blocks_sum=Sum("blocks"),
            bytes_sum=Sum("bytes"),
            post_ms_sum=Sum("post_ms"),
            duration_ms_sum=Sum("duration_ms"),
            duration_ms_max=Max("duration_ms"),
        )
    )
