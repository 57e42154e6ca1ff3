"""What others may write to the stream: rubbish, forgeries, old batches, floods. Turns are served all the while."""

import secrets
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from connector.router.chain import pack_chain
from connector.router.claims.messages import PURPOSE, Batch, Claim, TurnDecoding, TurnEnded, TurnStarted
from connector.router.claims.sharing import STREAM
from connector.signing import FleetKey
from tests.connector.router.claims.conftest import ValkeyServer
from tests.connector.router.conftest import Scene, user
from tests.connector.router.waiting import eventually


class Stranger:
    """Writes to the stream, with whatever key it has."""

    def __init__(self, scene: Scene, client: Redis) -> None:
        self.scene = scene
        self.client = client

    async def write(self, batch: bytes | str, **fields: str) -> None:
        await self.client.xadd(STREAM, {"by": "stranger", "batch": batch, **fields})

    async def until_heard(self, boot: str = "witness") -> None:
        """A batch of a true router is the last word: what was written before has been read."""
        before = self.scene.live.metrics.claims.labels("taken").value
        await self.write(self.signed(Batch(boot, 1, True, False, (started(secrets.token_hex(8)),))))
        metrics = self.scene.live.metrics
        await eventually(lambda: metrics.claims.labels("taken").value > before, "the witness is heard")

    def signed(self, batch: Batch) -> str:
        return self.scene.fleet_key.sign(PURPOSE, batch)

    @property
    def refused(self) -> dict[str, float]:
        series = self.scene.live.metrics.claim_batches_refused._series
        return {reason: value.value for (reason,), value in series.items()}


def started(turn_id: str, session_id: str = "s", parent: str = "", chain: bytes = b"12345678") -> TurnStarted:
    return TurnStarted(turn_id, session_id, "default", 0, chain, b"", parent)


@pytest.fixture
async def stranger(still_scene: Scene, valkey: ValkeyServer) -> AsyncIterator[Stranger]:
    await still_scene.start_router(redis_url=valkey.url)
    await eventually(lambda: still_scene.live.metrics.claims_connected.value == 1, "claims are shared")
    async with Redis.from_url(valkey.url) as client:
        yield Stranger(still_scene, client)


async def test_what_is_not_signed_for_claims_by_this_fleet_is_refused(stranger: Stranger) -> None:
    genuine = stranger.signed(Batch("b", 1, True, False, (started("t"),)))
    key_id, payload, mac = genuine.split(".")
    await stranger.write("rubbish")
    await stranger.write(secrets.token_bytes(500))
    await stranger.write("x" * 200_000)
    await stranger.write(FleetKey({"k9": secrets.token_bytes(32)}).sign(PURPOSE, Batch("b", 1, True, False, ())))
    await stranger.write(FleetKey({"k1": secrets.token_bytes(32)}).sign(PURPOSE, Batch("b", 1, True, False, ())))
    await stranger.write(stranger.scene.fleet_key.sign("envelope", Batch("b", 1, True, False, (started("t"),))))
    await stranger.write(f"{key_id}.{payload[:-4]}AAAA.{mac}")
    await stranger.client.xadd(STREAM, {"other": "fields"})
    await stranger.until_heard()
    assert stranger.refused == {"unknown_key": 3, "malformed_token": 1, "too_large": 1, "bad_signature": 3}
    assert stranger.scene.live.metrics.remote_turns.value == 1
    assert stranger.scene.live.index.get("t") is None
    await stranger.scene.chat([user("hi")])


BAD_CLAIMS: dict[str, Claim] = {
    "id": started("t" * 129),
    "no id": started(""),
    "tenant": TurnStarted("t", "s", "x" * 129, 0, b"", b"", ""),
    "chain": started("t", chain=bytes(8 * 256)),
    "index": TurnStarted("t", "s", "default", 2**31, b"", b"", ""),
    "parts": TurnStarted("t", "s", "default", 0, b"", bytes(8 * 1025), ""),
    "engine": TurnDecoding("t", "x" * 129),
}


@pytest.mark.parametrize("claim", BAD_CLAIMS.values(), ids=BAD_CLAIMS.keys())
async def test_claims_out_of_bounds_are_refused_even_from_a_router(stranger: Stranger, claim: Claim) -> None:
    await stranger.write(stranger.signed(Batch("b", 1, True, False, (claim,))))
    await stranger.until_heard()
    assert stranger.refused == {"other_format": 1}
    assert stranger.scene.live.metrics.remote_turns.value == 1


async def test_batch_played_again_changes_nothing(stranger: Stranger) -> None:
    first = stranger.signed(Batch("b", 1, True, False, (started("one", chain=b"1" * 8),)))
    await stranger.write(first)
    await stranger.write(stranger.signed(Batch("b", 2, False, True, ())))
    for _ in range(3):
        await stranger.write(first)
    await stranger.until_heard()
    assert stranger.refused == {"seen": 3}
    assert stranger.scene.live.index.get("one") is None


async def test_no_claim_ends_or_moves_a_turn_that_its_router_did_not_claim(stranger: Stranger) -> None:
    scene = stranger.scene
    await scene.chat([user("hi")])
    await scene.until_leased(1)
    envelope = scene.decode.received[-1].envelope
    assert envelope is not None
    claims = (
        TurnDecoding(envelope.turn_id, "elsewhere"),
        TurnEnded(envelope.turn_id, False, b"", 0),
        started(envelope.turn_id, envelope.session_id, chain=b"1" * 8),
    )
    await stranger.write(stranger.signed(Batch("b", 1, True, False, claims)))
    await stranger.until_heard()
    turn = scene.live.index.get(envelope.turn_id)
    assert turn is not None
    assert turn.has_lease
    assert turn.engine == "d0"
    assert not turn.is_running


async def test_parent_of_another_session_or_tenant_is_not_taken(stranger: Stranger) -> None:
    scene = stranger.scene
    await scene.chat([user("hi")])
    await scene.until_leased(1)
    envelope = scene.decode.received[-1].envelope
    assert envelope is not None
    foreign = (
        started("x", "another session", envelope.turn_id),
        TurnStarted("y", envelope.session_id, "other", 1, pack_chain(["ab" * 12]), b"", envelope.turn_id),
    )
    await stranger.write(stranger.signed(Batch("b", 1, True, False, foreign)))
    await stranger.until_heard()
    turn = scene.live.index.get(envelope.turn_id)
    assert turn is not None
    assert turn.continued_by == b""


async def test_flood_of_claims_is_bounded_and_turns_are_served(
    stranger: Stranger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("connector.router.claims.remote.MAX_TURNS", 500)
    for number in range(1, 21):
        claims = tuple(started(f"turn-{number}-{k}", f"s{k}", chain=secrets.token_bytes(64)) for k in range(100))
        await stranger.write(stranger.signed(Batch("flood", number, False, False, claims)))
    await stranger.scene.chat([user("hi")])
    metrics = stranger.scene.live.metrics
    await eventually(lambda: metrics.claims.labels("taken").value == 2000, "the flood is read")
    assert metrics.remote_turns.value == 500
    assert metrics.claims.labels("full").value == 1500
    assert stranger.scene.metric("claims_connected") == 1


async def test_stream_stays_short(stranger: Stranger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connector.router.claims.sharing.MAX_ENTRIES", 100)
    pipe = stranger.client.pipeline(transaction=False)
    for _ in range(2000):
        pipe.xadd(STREAM, {"by": "stranger", "batch": ""})
    await pipe.execute()
    await stranger.scene.chat([user("hi")])
    sent = stranger.scene.live.metrics.claims.labels("sent")
    await eventually(lambda: sent.value >= 3, "the turn is told")
    assert await stranger.client.xlen(STREAM) < 400
