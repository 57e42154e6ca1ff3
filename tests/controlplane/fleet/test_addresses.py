"""Addresses of engines and feeds are stored, shown and told to routers exactly as their agents gave them.

Field report 11 (llm-d/llm-d-router#2831, vllm-project/vllm#18148): IPv6 addresses were split at their colons.
"""

import pytest
from rest_framework.test import APIClient

from controlplane.fleet import liveness, selectors
from tests.controlplane.peers import agent_hello

pytestmark = pytest.mark.django_db

ADDRESSES = [
    ("http://[::1]:8200", "ws://[::1]:8210/feed"),
    ("http://[fe80::1%25lo]:8200", "ws://[fe80::1%25lo]:8210/feed"),
    ("http://[fe80::1%lo]:8200", "ws://[fe80::1%lo]:8210/feed"),
    ("http://decode-0.engines.svc:8200", "wss://decode-0.engines.svc/feed"),
]


@pytest.mark.parametrize(("engine_url", "feed_url"), ADDRESSES)
def test_address_is_kept_as_given(api: APIClient, engine_url: str, feed_url: str) -> None:
    hello = agent_hello(engine_url=engine_url, feed_url=feed_url)
    liveness.register_agent(hello, connection="socket-1", auto_approve=True)
    shown = api.get("/api/v1/engines/decode-0").json()
    assert (shown["engine_url"], shown["feed_url"]) == (engine_url, feed_url)
    (told,) = selectors.fleet_engines()
    assert (told.engine_url, told.feed_url) == (engine_url, feed_url)
