"""The live page over the real pair: what moves in the engines shows in Chromium without a reload."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Page, async_playwright, expect

from tests.e2e.stack import Stack
from tests.e2e.test_conversations import SYSTEM, client_of, say, turns_of

CHROMIUM = "/usr/bin/chromium"
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
QUIET = ["--disable-background-networking", "--disable-component-update", "--disable-sync"]


@pytest.fixture
async def page(stack: Stack) -> AsyncIterator[Page]:
    """Logged in as the operator that ``make up`` made."""
    name, _, password = stack.secret("admin-login").partition(" ")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=[*FLAGS, *QUIET])
        page = await browser.new_page(viewport={"width": 1600, "height": 1000})
        await page.goto(stack.controlplane_url)
        await page.get_by_label("Name").fill(name)
        await page.get_by_label("Password").fill(password)
        await page.get_by_role("button", name="Log in").click()
        await expect(page.get_by_text("live", exact=True)).to_be_visible(timeout=20_000)
        yield page
        await browser.close()


async def test_turn_shows_and_its_lease_goes_with_the_ttl(stack: Stack, page: Page, tmp_path: Path) -> None:
    for name in ("prefill-0", "decode-0"):
        await expect(page.locator(".engine", has_text=name).get_by_text("ready")).to_be_visible()
    messages = [{"role": "system", "content": SYSTEM + str(tmp_path)}]
    async with client_of(stack) as client:
        await say(client, messages, "First.")
        await say(client, messages, "Second.")
    turn = (await turns_of(stack, 2))[1]
    for row in await stack.rows("/transfers/", turn=turn["id"]):
        await expect(page.locator(f'[data-transfer="{row["id"]}"]')).to_contain_text("completed", timeout=10_000)
    session = page.locator(f'[data-session="{turn["session"]}"]')
    await expect(session.get_by_test_id("countdown")).to_be_visible()
    number = await stack.publish_and_wait(decoder_kv_blocks_ttl=10)
    await expect(page.get_by_text(f"revision {number}", exact=False).first).to_be_visible(timeout=5_000)
    await expect(session).to_contain_text("expired", timeout=20_000)
    await expect(session.get_by_test_id("countdown")).to_have_count(0)
