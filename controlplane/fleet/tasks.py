"""What beat asks for: noticing silence."""

from celery import shared_task

from controlplane.fleet import liveness


@shared_task(name="fleet.mark_silent", acks_late=True)
def mark_silent() -> None:
    """Idempotent; a late run finds nothing left to do."""
    liveness.mark_silent_agents()
    liveness.mark_silent_routers()


BEAT_SCHEDULE = {"fleet.mark_silent": {"task": "fleet.mark_silent", "schedule": 2.0, "options": {"expires": 2}}}
