"""The record of fleet, policy, placement, transfers and traces, and the doors to it."""

from controlplane.celery import app as celery_app

__all__ = ["celery_app"]
