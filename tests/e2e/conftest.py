"""Starts one whole stack, real pair included, for all end-to-end tests; every test leaves the policy as it found it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from connector.protocol import PolicyValues
from tests.e2e.own_stack import own_stack
from tests.e2e.stack import Stack

PORT_OFFSET = 11000
UP_TIMEOUT_SECONDS = 1500


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    """``BACKHAUL_E2E_RUN_DIR`` and ``BACKHAUL_E2E_PORT_OFFSET`` name a running stack to use instead of an own one."""
    if given := os.environ.get("BACKHAUL_E2E_RUN_DIR"):
        yield Stack(Path(given), int(os.environ.get("BACKHAUL_E2E_PORT_OFFSET", "0")))
        return
    with own_stack(".run-e2e", PORT_OFFSET, UP_TIMEOUT_SECONDS) as own:
        yield own


@pytest.fixture(autouse=True)
async def default_policy(stack: Stack) -> None:
    """Each test starts from the defaults, in force on every enforcer."""
    defaults = PolicyValues()
    values = {field: getattr(defaults, field) for field in defaults.__struct_fields__}
    current = await stack.get("/policies/effective/", engine="prefill-0")
    if current["values"] != values:
        await stack.publish_and_wait(**values)
