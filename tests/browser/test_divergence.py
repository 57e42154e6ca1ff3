"""What a turn's prompt changed shows where its decision does (field reports 1 and 57)."""

import os
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from connector.protocol import Decision, Role
from tests.browser.agent import ScriptedAgent
from tests.browser.conftest import new_turn_id
from tests.browser.test_live_page import open_page, store_fact
from tests.controlplane.dashboard.server import ControlPlaneServer
from tests.controlplane.placement.events import SESSION_ID, decided, granted, recorded

pytestmark = pytest.mark.timeout(180)

TURNS = (
    (Decision.PULLED, None, None, ""),
    (Decision.TRIMMED_PREFIX_DIVERGED, 4096, 12, "tool"),
    (Decision.PREFIX_DIVERGED, 0, None, "template"),
)


async def test_turn_says_which_message_changed_and_from_which_token_on(
    page: Page, control_plane: ControlPlaneServer, agent_token: str
) -> None:
    await open_page(page, control_plane)
    async with ScriptedAgent(control_plane.ws_url, agent_token, name="decode-0", role=Role.DECODE):
        for index, (decision, token, message, role) in enumerate(TURNS):
            turn = new_turn_id()
            await store_fact(decided(turn_id=turn, decision=decision, diverged_at_token=token), engine_name="prefill-0")
            await store_fact(granted(f"lease-{index}", turn_id=turn))
            await store_fact(
                recorded(turn_id=turn, index=index, diverged_at_message=message, diverged_role=role), engine_name=""
            )
        session = page.locator(f'[data-session="{SESSION_ID}"]')
        await session.get_by_role("button").first.click()
        turns = page.locator(".turns")
        rows = turns.locator("tbody tr")
        await expect(rows).to_have_count(3)
        await expect(rows.nth(0)).to_contain_text("template changed · token 0")
        await expect(rows.nth(1)).to_contain_text("message 12 changed · token 4,096")
        await expect(rows.nth(2)).not_to_contain_text("changed")
        await expect(rows.nth(1).get_by_text("message 12 changed")).to_have_attribute(
            "title",
            "First difference from the turn whose KV was offered: message 12 (tool) is not what it was. "
            "Token ids differ from token 4,096 on, to the block.",
        )
        card = page.locator(".engine", has_text="decode-0")
        await expect(card.get_by_text("0 blocks")).to_be_visible()
        if folder := os.environ.get("BACKHAUL_SCREENSHOTS"):
            await page.screenshot(path=Path(folder) / "divergence.png", full_page=True)
