"""Counts for Prometheus. Labels are states and kinds, never names or ids, so their number is bounded.

Read from the tables at each scrape, so that every replica gives the same answer. Counts only, hence no secret.
"""

from collections.abc import Iterator
from typing import Any

from django.db.models import Count, QuerySet, Sum
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.http import require_safe
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from controlplane.fleet import selectors as fleet
from controlplane.placement import selectors as placement
from controlplane.placement.models import OPEN_STATES
from controlplane.policy import selectors as policy


class ControlPlaneCollector(Collector):
    """Gauges of what the record holds now."""

    def collect(self) -> Iterator[Metric]:
        yield self._engines()
        yield _gauge("agents", "Agents by connection.", "connected", fleet.agents(), "connected")
        yield _gauge("routers", "Routers by connection.", "connected", fleet.routers(), "connected")
        held = placement.placements().filter(state__in=OPEN_STATES)
        yield _gauge("placements", "Placements that an engine holds or may hold.", "state", held, "state")
        yield _gauge("operations_waiting", "Commands without an answer.", "state", fleet.open_operations(), "state")
        yield self._fenced()
        num_unread_blocks, unread_block_seconds = fleet.unread_figures()
        yield GaugeMetricFamily(
            "backhaul_unread_blocks", "KV blocks in leases that no pull has read yet.", value=float(num_unread_blocks)
        )
        yield GaugeMetricFamily(
            "backhaul_unread_block_seconds",
            "Block-seconds of leases that ended unread, summed over the engines' current lives.",
            value=unread_block_seconds,
        )
        yield GaugeMetricFamily(
            "backhaul_policy_revision", "Newest policy revision.", value=float(policy.newest_number())
        )
        unconfirmed = policy.num_overdue_acks(timezone.now())
        yield GaugeMetricFamily(
            "backhaul_policy_unacknowledged", "Enforcers overdue with the newest revision.", value=float(unconfirmed)
        )
        faults = fleet.event_faults().aggregate(total=Sum("num_events"))["total"] or 0
        yield GaugeMetricFamily("backhaul_events_quarantined", "Events that could not be stored.", value=float(faults))

    def _fenced(self) -> Metric:
        """An operator's alarm: whatever reads leases after their end would have served wrong tokens without a fence."""
        family = CounterMetricFamily(
            "backhaul_reads_after_expiry",
            "Reads of leases that had ended, caught and recomputed.",
            labels=["direction"],
        )
        for direction, count in fleet.fenced_counts():
            family.add_metric([direction], count)
        return family

    def _engines(self) -> Metric:
        family = GaugeMetricFamily("backhaul_engines", "Engines by role and state.", labels=["role", "state"])
        for role, state, count in fleet.engine_counts():
            family.add_metric([role, state], count)
        return family


def _gauge(name: str, text: str, label: str, rows: QuerySet[Any], field: str) -> Metric:
    family = GaugeMetricFamily(f"backhaul_{name}", text, labels=[label])
    for value, count in rows.order_by().values_list(field).annotate(Count("pk")):
        family.add_metric([str(value).lower()], count)
    return family


_registry = CollectorRegistry(auto_describe=False)
_registry.register(ControlPlaneCollector())


@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    return HttpResponse(generate_latest(_registry), content_type=CONTENT_TYPE_LATEST)
