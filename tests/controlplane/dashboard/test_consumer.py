"""Parts of the consumer that need its clock turned: in this process, on the real channel layer and database."""

import json
from importlib import import_module
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from asgiref.testing import ApplicationCommunicator
from django.conf import settings
from django.utils import timezone

from controlplane.accounts.models import User
from controlplane.dashboard import consumers
from controlplane.dashboard.consumers import DashboardConsumer
from controlplane.transfers.models import Transfer
from tests.controlplane.dashboard.page import log_in

pytestmark = pytest.mark.django_db(transaction=True)

SECONDS = 10


@pytest.fixture
def scope(operator: User) -> dict[str, Any]:
    session = import_module(settings.SESSION_ENGINE).SessionStore(log_in(operator))
    return {"type": "websocket", "path": "/ws/dashboard/", "headers": [], "user": operator, "session": session}


async def connected(scope: dict[str, Any]) -> ApplicationCommunicator:
    page = ApplicationCommunicator(DashboardConsumer.as_asgi(), scope)
    await page.send_input({"type": "websocket.connect"})
    assert (await page.receive_output(SECONDS))["type"] == "websocket.accept"
    return page


async def disconnect(page: ApplicationCommunicator) -> None:
    await page.send_input({"type": "websocket.disconnect", "code": 1000})
    await page.wait(SECONDS)


async def test_row_whose_announcement_was_lost_is_shown_by_the_next_refresh(
    monkeypatch: pytest.MonkeyPatch, scope: dict[str, Any]
) -> None:
    monkeypatch.setattr(consumers, "REFRESH_SECONDS", 0.5)
    page = await connected(scope)
    assert json.loads((await page.receive_output(SECONDS))["text"])["transfers"] == []
    await sync_to_async(Transfer.objects.create)(
        id="unannounced", direction="D->P", source="d0", target="p0", session_id="s", lease_id="l", reason="",
        turn_id="01980000-0000-7000-8000-000000000001", tokens=32, blocks=1, bytes=1, post_ms=0, duration_ms=1,
        outcome="completed", ranks=1, started_at=timezone.now(), trace_id="", span_id="",
    )  # fmt: skip
    frame: dict[str, Any] = {}
    while frame.get("reason") != "refresh":
        frame = json.loads((await page.receive_output(SECONDS))["text"])
        seen = json.dumps({"type": "seen", "sequence": frame["sequence"]})
        await page.send_input({"type": "websocket.receive", "text": seen})
    assert [row["id"] for row in frame["transfers"]] == ["unannounced"]
    await disconnect(page)


async def test_page_that_never_confirms_is_given_up(monkeypatch: pytest.MonkeyPatch, scope: dict[str, Any]) -> None:
    monkeypatch.setattr(consumers, "GIVE_UP_SECONDS", 0.2)
    monkeypatch.setattr(consumers, "HEARTBEAT_SECONDS", 0.05)
    page = await connected(scope)
    message = await page.receive_output(SECONDS)
    while message["type"] == "websocket.send":
        message = await page.receive_output(SECONDS)
    assert (message["type"], message["code"]) == ("websocket.close", consumers.CLOSE_TOO_SLOW)
    await disconnect(page)


async def test_failing_database_closes_the_page_and_is_logged(
    monkeypatch: pytest.MonkeyPatch, scope: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    def fail(now: object) -> None:
        raise RuntimeError("the database is away")

    monkeypatch.setattr(consumers.selectors, "snapshot_rows", fail)
    page = await connected(scope)
    message = await page.receive_output(SECONDS)
    assert (message["type"], message["code"]) == ("websocket.close", consumers.CLOSE_INTERNAL_ERROR)
    assert "event=dashboard_failed" in caplog.text
    await disconnect(page)
