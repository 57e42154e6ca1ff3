"""Engines, feeds and the router itself on IPv6, scope ids included.

Field report 11 (llm-d/llm-d-router#2831, vllm-project/vllm#18148): host and port joined without brackets, and addresses
split at every colon.
"""

import socket

import aiohttp
import pytest
from msgspec import structs

from connector.protocol import Role
from connector.router.fleet import dialable
from tests.connector.router.conftest import API_KEY, MODEL, Scene, user
from tests.connector.router.fake_engine import FakeEngine
from tests.connector.router.sse import DONE


def has_ipv6_loopback() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.fixture
def ipv6() -> None:
    """Every Linux with IPv6 has its loopback; a machine without it can't be told to serve there."""
    assert has_ipv6_loopback(), "this machine has no IPv6 loopback (::1)"


@pytest.fixture
async def on_ipv6(still_scene: Scene, ipv6: None) -> Scene:
    scene = still_scene
    for engine in scene.engines:
        await engine.stop()
    scene.prefill = FakeEngine("p0", Role.PREFILL, scene.fleet_key, host="::1")
    scene.decode = FakeEngine("d0", Role.DECODE, scene.fleet_key, host="::1")
    scene.engines[:] = [scene.prefill, scene.decode]
    for engine in scene.engines:
        await engine.start()
    scene.control.snapshot = scene.snapshot()
    return scene


async def test_turns_and_leases_travel_over_ipv6(on_ipv6: Scene) -> None:
    scene = on_ipv6
    assert scene.decode.url.startswith("http://[::1]:")
    await scene.start_router()
    await scene.chat([user("first")], conversation_id="six")
    await scene.until_leased(1)
    await scene.chat([user("first"), user("second")], conversation_id="six")
    assert scene.prefill.received[-1].offer == f"d-offer-{scene.decode.received[0].headers['X-Request-Id']}"
    assert scene.prefill.received[0].headers["Host"] == f"[::1]:{scene.prefill.port}"


async def test_router_itself_listens_on_ipv6(on_ipv6: Scene) -> None:
    scene = on_ipv6
    await scene.start_router(host="::1")
    assert scene.router is not None
    url = f"http://[::1]:{scene.router.port}/v1/chat/completions"
    body = {"model": MODEL, "messages": [user("hi")], "stream": True}
    headers = {"Authorization": f"Bearer {API_KEY}"}
    async with aiohttp.ClientSession() as client, client.post(url, json=body, headers=headers) as response:
        assert response.status == 200
        assert (await response.content.read()).endswith(DONE)


@pytest.mark.parametrize("form", ["http://[::1%251]:{port}", "http://[::1%1]:{port}", "http://[0:0::0:1]:{port}/"])
async def test_every_written_form_of_an_address_is_served(on_ipv6: Scene, form: str) -> None:
    """RFC 6874 writes the scope's percent sign as %25; people don't. Feeds are dialled by the same forms."""
    scene = on_ipv6
    snapshot = scene.snapshot()
    engines = []
    for facts, fake in zip(snapshot.engines, scene.engines, strict=True):
        url = form.format(port=fake.port)
        feed_url = form.format(port=fake.feed.port).rstrip("/").replace("http", "ws") + "/feed"
        engines.append(structs.replace(facts, engine_url=url, feed_url=feed_url))
    scene.control.snapshot = structs.replace(snapshot, engines=tuple(engines))
    await scene.start_router()
    await scene.chat([user("hi")])
    await scene.until_leased(1)
    assert len(scene.prefill.received) == len(scene.decode.received) == 1


@pytest.mark.parametrize("url", ["http://[fe80::1%25lo]:8100", "http://[fe80::1%lo]:8100/"])
def test_link_local_address_reaches_the_resolver_with_its_scope(url: str) -> None:
    dialled = dialable(url)
    assert (dialled.raw_host, dialled.port) == ("fe80::1%lo", 8100)
    found = socket.getaddrinfo(dialled.raw_host, dialled.port, type=socket.SOCK_STREAM)
    assert found[0][4] == ("fe80::1", 8100, 0, socket.if_nametoindex("lo"))


@pytest.mark.parametrize("url", ["http://h:1/a%25b]", "http://h/%5Bx%5D%25"])
def test_percent_signs_elsewhere_are_left_alone(url: str) -> None:
    assert str(dialable(url)) == url


@pytest.mark.parametrize("url", ["http://::1:8100", "http://[::1", "::1", "http://[fe80::1%]:1", "http://fe80::1%lo"])
async def test_address_that_is_none_takes_only_its_engine_out(scene: Scene, url: str) -> None:
    engine = scene.live.fleet.get("p0")
    assert engine is not None
    facts = scene.facts(scene.prefill)
    engine.take_facts(structs.replace(facts, engine_url=url))
    await scene.chat([user("hi")])
    assert scene.prefill.received == []
    assert len(scene.decode.received) == 1
