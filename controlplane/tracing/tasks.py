"""What beat asks for: deleting spans that are older than the operator wants to keep."""

from datetime import timedelta

from celery import shared_task
from django.conf import settings
from django.utils import timezone

from controlplane.tracing.actions import delete_spans

DELETE_BATCH = 10_000
MAX_BATCHES = 1_000
"""Ten million spans a run: at 30 ms a batch well below the task's time limit."""


@shared_task(name="tracing.delete_old_spans", acks_late=True)
def delete_old_spans() -> int:
    """Deletes in batches, each its own transaction, so that ingest never waits long; idempotent."""
    cutoff = timezone.now() - timedelta(hours=settings.TRACE_RETENTION_HOURS)
    num_deleted = 0
    for _ in range(MAX_BATCHES):
        num_deleted_now = delete_spans(received_before=cutoff, limit=DELETE_BATCH)
        num_deleted += num_deleted_now
        if num_deleted_now < DELETE_BATCH:
            break
    return num_deleted


BEAT_SCHEDULE = {
    "tracing.delete_old_spans": {"task": "tracing.delete_old_spans", "schedule": 3600.0, "options": {"expires": 3600}},
}
