"""A channel layer that is away costs the news, one log line, and nothing else."""

import logging
from typing import Any

import pytest
from django.db import OperationalError
from rest_framework.test import APIClient

from controlplane import broadcast
from controlplane.broadcast import broadcast_on_commit
from controlplane.policy.actions import publish_policy
from controlplane.policy.models import PolicyRevision


@pytest.fixture
def no_redis(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = {
        "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
        "CONFIG": {"hosts": ["redis://127.0.0.1:1/0"]},
    }
    settings.CHANNEL_LAYERS = {"default": layer}
    monkeypatch.setattr(broadcast, "_outage", broadcast._OutageLog())


@pytest.mark.django_db(transaction=True)
def test_outage_is_logged_once_and_the_work_stands(no_redis: None, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        publish_policy(scope="fleet", values={"kv_recompute_threshold": 96}, author="test")
        broadcast_on_commit("agents", {"type": "policy.changed"})
    assert PolicyRevision.objects.count() == 2
    assert [record.getMessage().split()[0] for record in caplog.records if record.name == broadcast.__name__] == [
        "event=channel_layer_away"
    ]


@pytest.mark.django_db
def test_database_that_is_away_is_a_503_problem(api: APIClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Any, *args: Any, **kwargs: Any) -> None:
        raise OperationalError("connection refused")

    monkeypatch.setattr("controlplane.fleet.views.EngineViewSet.list", fail)
    response = api.get("/api/v1/engines")
    assert (response.status_code, response["Content-Type"]) == (503, "application/problem+json")
