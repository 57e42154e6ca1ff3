"""A publication over REST reaches every enforcer's socket, and what it answers shows in REST."""

import asyncio
from typing import Any

import aiohttp
import pytest

from connector.protocol import EngineState, FleetSnapshot, PolicyAck, SetPolicy, Welcome
from controlplane.fleet.models import Engine
from controlplane.policy.actions import publish_policy
from tests.controlplane.database import ask
from tests.controlplane.peers import Peer, ack_of, agent_hello, agent_socket, router_hello, router_socket, status

pytestmark = pytest.mark.django_db(transaction=True)


class Operator:
    """REST over HTTP, as ``curl`` would speak it."""

    def __init__(self, url: str, secret: str) -> None:
        self._url = f"{url}/api/v1"
        self._headers = {"Authorization": f"Bearer {secret}"}

    async def ask(self, method: str, address: str, body: Any = None) -> tuple[int, Any]:
        async with (
            aiohttp.ClientSession(headers=self._headers) as session,
            session.request(method, f"{self._url}/{address}", json=body) as response,
        ):
            return response.status, await response.json(content_type=None)

    async def publish(self, scope: str = "fleet", **values: Any) -> int:
        status, revision = await self.ask("POST", "policies", {"scope": scope, "values": values, "reason": "test"})
        assert status == 201, revision
        return int(revision["number"])

    async def states(self, number: int) -> dict[str, str]:
        _, revision = await self.ask("GET", f"policies/{number}")
        return {ack["enforcer"]: ack["state"] for ack in revision["acks"]}

    async def eventually_states(self, number: int, expected: dict[str, str]) -> None:
        async with asyncio.timeout(6):
            found = await self.states(number)
            while found != expected:
                await asyncio.sleep(0.05)
                found = await self.states(number)


@pytest.fixture
def operator(server_url: str, admin_secret: str) -> Operator:
    return Operator(server_url, admin_secret)


async def enrolled(peer: Peer, name: str = "decode-0") -> SetPolicy:
    await peer.say(agent_hello(name))
    await peer.next_of(Welcome)
    policy = await peer.next_of(SetPolicy)
    await peer.say(ack_of(name, policy.revision, policy.values))
    return policy


async def test_publication_is_pushed_and_acked_by_engines_and_routers(
    server_url: str, operator: Operator, agent_secret: str, router_secret: str
) -> None:
    async with agent_socket(server_url, agent_secret) as agent, router_socket(server_url, router_secret) as router:
        await enrolled(agent)
        await router.say(router_hello())
        await router.next_of(FleetSnapshot)
        number = await operator.publish(kv_recompute_threshold=100_000)
        told = await agent.next_of(SetPolicy)
        assert (told.revision, told.values.kv_recompute_threshold) == (number, 100_000)
        await agent.say(ack_of("decode-0", told.revision, told.values))
        while (snapshot := await router.next_of(FleetSnapshot)).revision < number:
            pass
        await router.say(ack_of("router-0", snapshot.revision, snapshot.values))
        await operator.eventually_states(number, {"decode-0": "acked", "router-0": "acked"})
    _, revision = await operator.ask("GET", f"policies/{number}")
    assert all(0 <= ack["latency_ms"] < 3000 and ack["acked_at"] for ack in revision["acks"])
    assert {ack["kind"] for ack in revision["acks"]} == {"engine", "router"}


async def test_engine_whose_values_do_not_change_acks_the_new_number_too(
    server_url: str, operator: Operator, agent_secret: str
) -> None:
    async with agent_socket(server_url, agent_secret) as agent:
        before = await enrolled(agent)
        number = await operator.publish("engine:another", kv_recompute_threshold=7)
        told = await agent.next_of(SetPolicy)
    assert (told.revision, told.values) == (number, before.values)


async def test_each_engine_gets_the_narrowest_value(server_url: str, operator: Operator, agent_secret: str) -> None:
    await operator.publish("model:tiny", kv_recompute_threshold=1)
    await operator.publish("role:decode", decoder_kv_blocks_ttl=20)
    await operator.publish("engine:decode-0", kv_recompute_threshold=2)
    async with agent_socket(server_url, agent_secret) as one, agent_socket(server_url, agent_secret) as two:
        first, second = await enrolled(one, "decode-0"), await enrolled(two, "decode-1")
    assert (first.values.kv_recompute_threshold, second.values.kv_recompute_threshold) == (2, 1)
    assert first.values.decoder_kv_blocks_ttl == second.values.decoder_kv_blocks_ttl == 20
    _, effective = await operator.ask("GET", "policies/effective?engine=decode-0")
    assert effective["values"]["kv_recompute_threshold"] == 2
    assert effective["sources"] | {"kv_recompute_threshold": "engine:decode-0"} == effective["sources"]
    assert effective["sources"]["decoder_kv_blocks_ttl"] == "role:decode"


async def test_values_that_differ_when_read_back_are_drift(
    server_url: str, operator: Operator, agent_secret: str
) -> None:
    async with agent_socket(server_url, agent_secret) as agent:
        await enrolled(agent)
        number = await operator.publish(decoder_kv_blocks_ttl=60)
        told = await agent.next_of(SetPolicy)
        await agent.say(ack_of("decode-0", number, told.values, decoder_kv_blocks_ttl=480))
        await operator.eventually_states(number, {"decode-0": "drifted"})
    _, revision = await operator.ask("GET", f"policies/{number}")
    assert revision["acks"][0]["drifted_fields"] == ["decoder_kv_blocks_ttl"]


async def test_stopped_engine_shows_as_unacknowledged_within_five_seconds(
    server_url: str, operator: Operator, agent_secret: str
) -> None:
    async with agent_socket(server_url, agent_secret) as agent:
        await enrolled(agent)
        await agent.say(status(EngineState.STALLED))
        number = await operator.publish(kv_recompute_threshold=96)
        told = await agent.next_of(SetPolicy)
        assert await operator.states(number) == {"decode-0": "waiting"}
        async with asyncio.timeout(5):
            await operator.eventually_states(number, {"decode-0": "unacknowledged"})
        await agent.say(ack_of("decode-0", number, told.values))
        await operator.eventually_states(number, {"decode-0": "acked"})


async def test_agent_that_was_away_is_told_at_its_hello(server_url: str, operator: Operator, agent_secret: str) -> None:
    async with agent_socket(server_url, agent_secret) as agent:
        await enrolled(agent)
    number = await operator.publish(kv_recompute_threshold=96)
    async with agent_socket(server_url, agent_secret) as agent:
        assert (await enrolled(agent)).revision == number
        await operator.eventually_states(number, {"decode-0": "acked"})


async def test_lost_push_is_made_up_for_by_the_next_heartbeat(
    server_url: str, agent_secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with agent_socket(server_url, agent_secret) as agent:
        await enrolled(agent)
        monkeypatch.setattr("controlplane.policy.actions.broadcast_on_commit", lambda group, message: None)
        await ask(lambda: publish_policy(scope="fleet", values={"trace_sampling": 0.5}, author="test"))
        beating = asyncio.create_task(_beat(agent))
        assert (await agent.next_of(SetPolicy)).values.trace_sampling == 0.5
        beating.cancel()


async def _beat(agent: Peer) -> None:
    while True:
        await agent.say(status())
        await asyncio.sleep(0.2)


async def test_ack_in_anothers_name_counts_for_the_socket_that_sent_it(
    server_url: str, operator: Operator, agent_secret: str
) -> None:
    await ask(lambda: Engine.objects.create(name="victim", approved=True))
    async with agent_socket(server_url, agent_secret) as agent:
        await enrolled(agent)
        number = await operator.publish(kv_recompute_threshold=96)
        told = await agent.next_of(SetPolicy)
        await agent.say(PolicyAck(enforcer="victim", revision=number, values=told.values))
        await operator.eventually_states(number, {"decode-0": "acked"})
