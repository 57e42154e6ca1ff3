"""Old spans go in batches, new ones stay."""

from datetime import timedelta

import pytest
from django.utils import timezone
from pytest_django import Settings

from controlplane.tracing import tasks
from controlplane.tracing.actions import delete_spans, store_spans
from controlplane.tracing.models import Span
from controlplane.tracing.otlp import read_export
from tests.controlplane.tracing.messages import export, span

pytestmark = pytest.mark.django_db


@pytest.fixture
def spans() -> None:
    """Five that arrived two hours ago and two that arrived now."""
    store_spans(read_export(export(*(span(number) for number in range(1, 8)))).rows)
    Span.objects.filter(span_id__lte=5).update(received_at=timezone.now() - timedelta(hours=2))


def test_spans_older_than_the_retention_go(spans: None, settings: Settings) -> None:
    settings.TRACE_RETENTION_HOURS = 1
    assert tasks.delete_old_spans() == 5
    assert set(Span.objects.values_list("span_id", flat=True)) == {6, 7}


def test_spans_within_the_retention_stay(spans: None, settings: Settings) -> None:
    settings.TRACE_RETENTION_HOURS = 3
    assert tasks.delete_old_spans() == 0


def test_batches_are_bounded_and_one_run_takes_several(
    spans: None, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = timezone.now() - timedelta(hours=1)
    assert delete_spans(received_before=before, limit=2) == 2
    monkeypatch.setattr(tasks, "DELETE_BATCH", 2)
    settings.TRACE_RETENTION_HOURS = 1
    assert tasks.delete_old_spans() == 3
    assert Span.objects.count() == 2
