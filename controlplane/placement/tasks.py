"""What beat asks for: ending placements whose time ran out, forgetting leases that were never granted."""

from celery import shared_task
from django.utils import timezone

from controlplane.placement import actions, draining

EXPIRY_BATCH = 500
MAX_EXPIRY_BATCHES = 20
"""Bounds one run; what is left over is the next one's, 2 s later."""


@shared_task(name="placement.expire_leases", acks_late=True)
def expire_leases() -> int:
    """Ends overdue placements, each batch in its own transaction; idempotent, and runs may overlap."""
    now = timezone.now()
    num_expired = 0
    for _ in range(MAX_EXPIRY_BATCHES):
        num_expired_now = actions.expire_overdue_placements(now=now, limit=EXPIRY_BATCH)
        num_expired += num_expired_now
        if num_expired_now < EXPIRY_BATCH:
            break
    return num_expired


@shared_task(name="placement.forget_ungranted_leases", acks_late=True)
def forget_ungranted_leases() -> int:
    return actions.forget_ungranted_leases(now=timezone.now())


@shared_task(name="placement.release_lingering_leases", acks_late=True)
def release_lingering_leases() -> int:
    return draining.release_lingering_leases()


BEAT_SCHEDULE = {
    "placement.release_lingering_leases": {
        "task": "placement.release_lingering_leases",
        "schedule": 2.0,
        "options": {"expires": 2},
    },
    "placement.expire_leases": {"task": "placement.expire_leases", "schedule": 2.0, "options": {"expires": 2}},
    "placement.forget_ungranted_leases": {
        "task": "placement.forget_ungranted_leases",
        "schedule": 600.0,
        "options": {"expires": 600},
    },
}
