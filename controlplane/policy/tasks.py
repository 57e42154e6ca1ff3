"""Tells dashboards when the time to confirm has run out; REST works it out on reading."""

from celery import shared_task

from controlplane.policy import actions


@shared_task(name="policy.note_overdue_acks", acks_late=True)
def note_overdue_acks() -> None:
    actions.note_overdue_acks()


BEAT_SCHEDULE = {
    "policy.note_overdue_acks": {"task": "policy.note_overdue_acks", "schedule": 1.0, "options": {"expires": 1}}
}
