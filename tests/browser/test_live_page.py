"""What an operator sees and does on the live page."""

import re
from typing import Any, Literal

import pytest
from django.utils import timezone
from playwright.async_api import Page, expect

from connector.protocol import Decision, Direction, LeaseState, PolicyValues, Role, TransferOutcome
from controlplane.accounts.actions import create_token
from controlplane.accounts.models import TokenKind, User
from controlplane.placement import actions as placement
from controlplane.policy.models import PolicyRevision
from controlplane.transfers import actions as transfers
from tests.browser.agent import ScriptedAgent
from tests.browser.conftest import PASSWORD, new_turn_id, stored
from tests.controlplane.dashboard.server import ControlPlaneServer
from tests.controlplane.placement.events import SESSION_ID, TRACE_ID, decided, ended, granted, recorded
from tests.controlplane.transfers.events import moved

pytestmark = pytest.mark.timeout(180)

RECOVERY_MS = 30_000


async def store_transfer(transfer_id: str, **changes: Any) -> None:
    event = moved(transfer_id, source_engine="decode-0", target_engine="prefill-0", **changes)
    if event.direction is Direction.PREFILL_TO_DECODE:
        event = moved(transfer_id, **{**changes, "source_engine": "prefill-0", "target_engine": "decode-0"})
    await stored(
        transfers.apply_event, event, engine_name=event.target_engine, incarnation="i", occurred_at=timezone.now()
    )


async def store_fact(event: Any, engine_name: str = "decode-0") -> None:
    await stored(placement.apply_event, event, engine_name=engine_name, incarnation="i", occurred_at=timezone.now())


async def open_page(page: Page, control_plane: ControlPlaneServer) -> None:
    await page.goto(control_plane.http_url)
    await expect(page.get_by_text("live", exact=True)).to_be_visible()


class TestLogin:
    async def test_visitor_logs_in_and_out(self, page: Page, control_plane: ControlPlaneServer, operator: User) -> None:
        await page.context.clear_cookies()
        await page.goto(control_plane.http_url)
        await expect(page).to_have_url(re.compile("/login/"))
        await page.get_by_label("Name").fill("operator")
        await page.get_by_label("Password").fill(PASSWORD)
        await page.get_by_role("button", name="Log in").click()
        await expect(page.get_by_text("live", exact=True)).to_be_visible()
        await page.get_by_role("button", name="Log out").click()
        await expect(page).to_have_url(re.compile("/login/"))

    async def test_login_that_ends_elsewhere_is_said(
        self, page: Page, control_plane: ControlPlaneServer, operator: User
    ) -> None:
        await open_page(page, control_plane)
        operator.is_active = False
        await stored(operator.save)
        await expect(page.get_by_text("Your login has ended.")).to_be_visible(timeout=RECOVERY_MS)
        await expect(page.get_by_role("link", name="Log in again")).to_be_visible()


class TestEmptyFleet:
    async def test_says_what_to_do_next(self, page: Page, control_plane: ControlPlaneServer) -> None:
        await open_page(page, control_plane)
        await expect(page.get_by_text("No engine has joined yet")).to_be_visible()
        await expect(page.get_by_text("No KV has moved yet")).to_be_visible()
        await expect(page.get_by_text("No session yet")).to_be_visible()


class TestLiveRows:
    async def test_engine_appears_with_its_blocks_when_its_agent_joins(
        self, page: Page, control_plane: ControlPlaneServer, agent_token: str
    ) -> None:
        await open_page(page, control_plane)
        async with ScriptedAgent(control_plane.ws_url, agent_token, name="decode-0", role=Role.DECODE):
            card = page.locator(".engine", has_text="decode-0")
            await expect(card.get_by_text("ready")).to_be_visible()
            await expect(card.get_by_text("leased 480")).to_be_visible()
            await expect(card.get_by_text("quarantined 24")).to_be_visible()
            await expect(card.get_by_text("in use 344")).to_be_visible()
        await expect(card.get_by_title("Not connected")).to_be_visible()

    async def test_engine_that_awaits_approval_is_approved_from_its_card(
        self, page: Page, control_plane: ControlPlaneServer
    ) -> None:
        _, token = await stored(create_token, kind=TokenKind.AGENT, name="careful", actor="test")
        await open_page(page, control_plane)
        async with ScriptedAgent(control_plane.ws_url, token, name="decode-9", role=Role.DECODE):
            card = page.locator(".engine", has_text="decode-9")
            await expect(card.get_by_text("awaits approval")).to_be_visible()
            await card.get_by_role("button", name="Approve").click()
            await expect(card.get_by_text("ready")).to_be_visible()
            await expect(card.get_by_text("awaits approval")).to_have_count(0)

    async def test_transfers_of_both_directions_appear_without_reload(
        self, page: Page, control_plane: ControlPlaneServer
    ) -> None:
        await open_page(page, control_plane)
        await store_transfer("back")
        row = page.locator('[data-transfer="back"]')
        await expect(row).to_contain_text("decode-0 → prefill-0")
        await expect(row).to_contain_text("608")
        await expect(row).to_contain_text("0.62 MB")
        await expect(row).to_contain_text("12.5 ms")
        await expect(row.get_by_role("link")).to_have_attribute("href", f"/traces/{TRACE_ID}")
        await store_transfer("forth", direction=Direction.PREFILL_TO_DECODE, outcome=TransferOutcome.FENCED)
        await expect(page.locator('[data-transfer="forth"]')).to_contain_text("fenced")
        await expect(page.locator(".lane-forward .mark-trouble")).to_have_count(1)
        await expect(page.locator(".lane-return .mark")).to_have_count(1)
        await page.get_by_text("Not completed", exact=True).click()
        await expect(row).to_have_count(0)

    async def test_lease_counts_down_each_second_and_goes_on_expiry(
        self, page: Page, control_plane: ControlPlaneServer
    ) -> None:
        await open_page(page, control_plane)
        await store_fact(granted(remaining_seconds=5.0))
        countdown = page.get_by_test_id("countdown")
        await expect(countdown).to_be_visible()
        first = await countdown.inner_text()
        await expect(countdown).not_to_have_text(first)
        assert re.fullmatch(r"0:0[1-5]", (await countdown.inner_text()).strip())
        await expect(countdown).to_have_count(0, timeout=RECOVERY_MS)
        row = page.locator(f'[data-session="{SESSION_ID}"]')
        await expect(row).to_contain_text("ending")
        await store_fact(ended(state=LeaseState.EXPIRED, reason="ttl"))
        await expect(row).to_contain_text("expired")

    async def test_session_shows_how_its_last_turn_got_its_kv(
        self, page: Page, control_plane: ControlPlaneServer
    ) -> None:
        await open_page(page, control_plane)
        for index in (1, 2):
            turn_id = new_turn_id()
            await store_fact(recorded(turn_id=turn_id, index=index), engine_name="")
            decision = Decision.NO_PLACEMENT if index == 1 else Decision.PULLED
            await store_fact(decided(turn_id=turn_id, decision=decision), engine_name="prefill-0")
        row = page.locator(f'[data-session="{SESSION_ID}"]')
        await expect(row).to_contain_text("pulled")
        await row.get_by_role("button").press("Enter")
        await expect(row.get_by_role("button")).to_have_attribute("aria-expanded", "true")
        turns = page.locator(".turns tbody tr")
        await expect(turns).to_have_count(2)
        await expect(turns.last).to_contain_text("no placement")


class TestPolicy:
    async def test_publishing_makes_a_revision_whose_acks_arrive(
        self, page: Page, control_plane: ControlPlaneServer, agent_token: str
    ) -> None:
        async with ScriptedAgent(control_plane.ws_url, agent_token, name="prefill-0", role=Role.PREFILL) as agent:
            await open_page(page, control_plane)
            await expect(page.locator(".engine", has_text="prefill-0")).to_be_visible()
            agent.holds_acks = True
            form = page.get_by_role("form", name="Publish a policy revision")
            await form.get_by_label("kv_recompute_threshold").fill("900")
            await form.get_by_label("Reason").fill("Break-even of this fleet")
            await form.get_by_role("button", name="Review change").click()
            await expect(form.locator(".diff")).to_contain_text("64 tokens")
            await expect(form.locator(".diff")).to_contain_text("900 tokens")
            await form.get_by_role("button", name="Publish to fleet").click()

            await expect(form.get_by_role("status")).to_contain_text("is published")
            ack = page.locator('[data-enforcer="prefill-0"]')
            await expect(ack).to_contain_text("waiting")
            await expect(ack).to_contain_text("unacknowledged")
            await agent.release_acks()
            await expect(ack).to_contain_text("acked in")
            await expect(page.locator('[data-field="kv_recompute_threshold"]')).to_have_text("900 tokens")
        revision = await stored(PolicyRevision.objects.latest, "number")
        assert revision.values["kv_recompute_threshold"] == 900
        assert (revision.scope, revision.author, revision.reason) == (
            "fleet",
            "user:operator",
            "Break-even of this fleet",
        )

    async def test_drift_names_the_fields_that_differ(
        self, page: Page, control_plane: ControlPlaneServer, agent_token: str
    ) -> None:
        async with ScriptedAgent(control_plane.ws_url, agent_token, name="decode-0", role=Role.DECODE) as agent:
            await open_page(page, control_plane)
            await expect(page.locator(".engine", has_text="decode-0")).to_be_visible()
            agent.reads_back = PolicyValues(decoder_kv_blocks_ttl=480)
            form = page.get_by_role("form", name="Publish a policy revision")
            await form.get_by_label("Scope").select_option("engine")
            await form.get_by_label("Name of the engine").fill("decode-0")
            await form.get_by_label("decoder_kv_blocks_ttl").fill("120")
            await form.get_by_label("Reason").fill("Shorter")
            await form.get_by_role("button", name="Review change").click()
            await form.get_by_role("button", name="Publish to engine:decode-0").click()
            ack = page.locator('[data-enforcer="decode-0"]')
            await expect(ack).to_contain_text("drifted")
            await expect(ack).to_contain_text("decoder_kv_blocks_ttl is 480 s, should be 120 s")

    async def test_mistake_is_shown_at_its_field_and_nothing_is_sent(
        self, page: Page, control_plane: ControlPlaneServer
    ) -> None:
        await open_page(page, control_plane)
        count = await stored(PolicyRevision.objects.count)
        form = page.get_by_role("form", name="Publish a policy revision")
        await form.get_by_label("decoder_kv_blocks_ttl").fill("5")
        await form.get_by_role("button", name="Review change").click()
        await expect(form.get_by_text("Must be 0 or at least 10 s")).to_be_visible()
        await expect(form.get_by_text("Say why")).to_be_visible()
        await expect(form.get_by_label("decoder_kv_blocks_ttl")).to_be_focused()
        await expect(form.get_by_label("decoder_kv_blocks_ttl")).to_have_attribute("aria-invalid", "true")
        assert await stored(PolicyRevision.objects.count) == count

    async def test_refusal_of_the_server_is_shown_in_its_words(
        self, page: Page, control_plane: ControlPlaneServer
    ) -> None:
        await open_page(page, control_plane)
        form = page.get_by_role("form", name="Publish a policy revision")
        await form.get_by_label("Scope").select_option("role")
        await form.get_by_label("Name of the role").fill("router")
        await form.get_by_label("trace_sampling").fill("0.5")
        await form.get_by_label("Reason").fill("A role that doesn't exist")
        await form.get_by_role("button", name="Review change").click()
        await form.get_by_role("button", name="Publish to role:router").click()
        await expect(form.get_by_role("status")).to_contain_text("Not published")
        await expect(form.locator(".problem", has_text="role")).to_be_visible()


class TestConnection:
    async def test_page_says_that_the_server_is_away_and_recovers_by_itself(
        self, page: Page, control_plane: ControlPlaneServer
    ) -> None:
        await open_page(page, control_plane)
        await store_transfer("before")
        await expect(page.locator('[data-transfer="before"]')).to_be_visible()
        control_plane.stop()
        try:
            await expect(page.get_by_text("Disconnected from the control plane.")).to_be_visible()
            await expect(page.locator('[data-transfer="before"]')).to_be_visible()
            await store_transfer("meanwhile")
        finally:
            await stored(control_plane.start)
        await expect(page.get_by_text("live", exact=True)).to_be_visible(timeout=RECOVERY_MS)
        await expect(page.get_by_text("Disconnected from the control plane.")).to_have_count(0)
        await expect(page.locator('[data-transfer="meanwhile"]')).to_be_visible()


class TestAccess:
    @pytest.mark.parametrize("scheme", ["light", "dark"])
    async def test_no_rule_of_accessibility_is_broken(
        self,
        page: Page,
        control_plane: ControlPlaneServer,
        agent_token: str,
        axe: str,
        scheme: Literal["light", "dark"],
    ) -> None:
        await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        async with ScriptedAgent(control_plane.ws_url, agent_token, name="decode-0", role=Role.DECODE):
            await open_page(page, control_plane)
            await expect(page.locator(".engine", has_text="decode-0")).to_be_visible()
            await store_transfer("back", outcome=TransferOutcome.TIMEOUT, reason="deadline")
            await store_fact(granted())
            await store_fact(recorded(), engine_name="")
            await page.locator(f'[data-session="{SESSION_ID}"]').get_by_role("button").click()
            await expect(page.locator(".turns tbody tr")).to_have_count(1)
            await page.get_by_role("button", name="Review change").click()
            await page.evaluate(axe)
            found = await page.evaluate("async () => await axe.run(document)")
        assert [(one["id"], [node["html"] for node in one["nodes"]]) for one in found["violations"]] == []
        assert "color-contrast" in {one["id"] for one in found["passes"]}

    async def test_narrow_window_never_scrolls_sideways(self, page: Page, control_plane: ControlPlaneServer) -> None:
        await page.set_viewport_size({"width": 1024, "height": 800})
        await open_page(page, control_plane)
        await store_transfer("back")
        await store_fact(granted())
        await store_fact(recorded(), engine_name="")
        await expect(page.locator(f'[data-session="{SESSION_ID}"]')).to_be_visible()
        assert await page.evaluate("document.documentElement.scrollWidth") <= 1024
        assert await page.evaluate("document.documentElement.scrollHeight") < 3000
