"""The celery application: JSON only, UTC, with the beat schedule of every app that has one."""

import importlib.util
import os
from typing import Any

from celery import Celery
from celery.signals import worker_process_init

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings.production")

app = Celery("backhaul")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


@app.on_after_finalize.connect
def collect_beat_schedule(sender: Celery, **_: Any) -> None:
    """Adds ``tasks.BEAT_SCHEDULE`` of each installed app; a missing one is normal, a broken import is not."""
    from django.apps import apps

    for config in apps.get_app_configs():
        module = f"{config.name}.tasks"
        if config.name.startswith("controlplane.") and importlib.util.find_spec(module):
            sender.conf.beat_schedule.update(getattr(importlib.import_module(module), "BEAT_SCHEDULE", {}))


@worker_process_init.connect
def start_worker_telemetry(**_: Any) -> None:
    """Exporter threads don't survive a fork, so each worker process builds its own provider."""
    from controlplane.telemetry import start_telemetry

    start_telemetry()
