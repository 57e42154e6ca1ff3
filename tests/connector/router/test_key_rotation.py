"""A fleet key rotated under living sessions: their reuse, ids and salts last while the old line is in the file."""

import secrets
from pathlib import Path
from typing import Any

import pytest

from connector.protocol import Decision, LeaseState
from connector.router import live
from connector.router.keyring import SessionKeyring
from connector.signing import FleetKey, FleetKeyFile
from tests.connector.router.conftest import Scene, assistant, user
from tests.connector.router.waiting import eventually

OLD, NEW = secrets.token_bytes(32), secrets.token_bytes(32)
BEFORE = FleetKey({"k1": OLD})
DURING = FleetKey({"k2": NEW, "k1": OLD})
AFTER = FleetKey({"k2": NEW})


class KeyInHand:
    """The fleet key of router and fake engines alike, replaced by the test instead of a file."""

    def __init__(self, key: FleetKey) -> None:
        self.current = key

    def refresh(self) -> bool:
        return False

    def verify(self, purpose: str, token: object, kind: Any) -> Any:
        return self.current.verify(purpose, token, kind)


class Leg:
    """What the last prefill leg carried."""

    def __init__(self, scene: Scene) -> None:
        received = scene.prefill.received[-1]
        assert received.envelope is not None
        self.session = received.envelope.session_id
        self.turn = received.envelope.turn_id
        self.offer = received.offer
        self.reason = received.envelope.reason_without_offer
        self.salt = received.body["cache_salt"]
        self.signed_with = received.body["kv_transfer_params"]["backhaul"]["envelope"].partition(".")[0]


@pytest.fixture
def key() -> KeyInHand:
    return KeyInHand(BEFORE)


@pytest.fixture
async def scene(still_scene: Scene, key: KeyInHand) -> Scene:
    for engine in still_scene.engines:
        engine._fleet_key = key  # type: ignore[assignment]  # a key, as far as an engine uses it
    await still_scene.start_router(fleet_key=key)
    return still_scene


async def say(scene: Scene, messages: list[dict[str, Any]], text: str, **fields: Any) -> Leg:
    """One turn whose lease is known when this returns."""
    known = len(scene.live.book)
    messages.append(user(text))
    await scene.chat(messages, **fields)
    messages.append(assistant("Hello you"))
    await scene.until_leased(known + 1)
    return Leg(scene)


KEYED = {"conversation_id": "mine"}


@pytest.mark.parametrize("fields", [{}, KEYED], ids=["by content", "by the client's key"])
async def test_a_living_session_keeps_reuse_id_and_salt_through_a_rotation(
    scene: Scene, key: KeyInHand, fields: dict[str, Any]
) -> None:
    messages: list[dict[str, Any]] = []
    first = await say(scene, messages, "one", **fields)
    key.current = DURING
    second = await say(scene, messages, "two", **fields)
    third = await say(scene, messages, "three", **fields)
    assert [second.offer, third.offer] == [f"d-offer-{first.turn}", f"d-offer-{second.turn}"]
    assert first.session == second.session == third.session
    assert first.salt == second.salt == third.salt
    assert [leg.signed_with for leg in (first, second, third)] == ["k1", "k2", "k2"]


async def test_a_new_session_takes_the_newest_key(scene: Scene, key: KeyInHand) -> None:
    old = await say(scene, [], "one")
    key.current = DURING
    new = await say(scene, [], "another")
    assert new.salt != old.salt
    key.current = AFTER
    assert (await say(scene, [], "and another")).salt == new.salt


async def test_without_the_old_line_an_old_session_is_recomputed_and_goes_on_under_the_new_key(
    scene: Scene, key: KeyInHand
) -> None:
    messages: list[dict[str, Any]] = []
    first = await say(scene, messages, "one", **KEYED)
    key.current = AFTER
    second = await say(scene, messages, "two", **KEYED)
    assert (second.offer, second.reason) == (None, Decision.NO_PLACEMENT)
    assert second.session != first.session
    third = await say(scene, messages, "three", **KEYED)
    assert third.offer == f"d-offer-{second.turn}"


async def test_a_session_whose_lease_is_gone_moves_to_the_newest_key_and_stays_one_conversation(
    scene: Scene, key: KeyInHand
) -> None:
    messages: list[dict[str, Any]] = []
    first = await say(scene, messages, "one")
    await scene.decode.feed.end(f"lease-{first.turn}", LeaseState.EXPIRED)
    await scene.until_leased(0)
    key.current = DURING
    second = await say(scene, messages, "two")
    assert (second.offer, second.reason) == (None, Decision.EXPIRED)
    assert second.session == first.session
    assert second.salt != first.salt
    key.current = AFTER
    third = await say(scene, messages, "three")
    assert (third.offer, third.session, third.salt) == (f"d-offer-{second.turn}", first.session, second.salt)


async def test_an_old_sessions_own_lease_beats_a_new_ones_that_shares_the_start(scene: Scene, key: KeyInHand) -> None:
    system = {"role": "system", "content": "You are terse."}
    old: list[dict[str, Any]] = [system]
    await say(scene, old, "one")
    second = await say(scene, old, "two")
    key.current = DURING
    await say(scene, [system], "somebody else")
    third = await say(scene, old, "three")
    assert third.offer == f"d-offer-{second.turn}"
    assert third.session == second.session


async def test_a_restarted_router_finds_leases_of_both_keys(scene: Scene, key: KeyInHand) -> None:
    old: list[dict[str, Any]] = []
    new: list[dict[str, Any]] = []
    first = await say(scene, old, "one")
    key.current = DURING
    other = await say(scene, new, "another")
    await scene.stop_router()
    await scene.start_router(fleet_key=key)
    await scene.until_leased(2)
    assert (await say(scene, old, "two")).offer == f"d-offer-{first.turn}"
    assert (await say(scene, new, "more")).offer == f"d-offer-{other.turn}"


def test_keys_that_stay_keep_what_was_derived_from_them() -> None:
    key = KeyInHand(BEFORE)
    ring = SessionKeyring(key)
    (old,) = ring.uses()
    key.current = DURING
    new, still_old = ring.uses()
    assert still_old is old
    assert new.sessions.cache_salt("t") != old.sessions.cache_salt("t")
    key.current = AFTER
    assert ring.uses() == (new,)


def test_one_secret_under_two_ids_is_looked_up_once() -> None:
    assert len(SessionKeyring(FleetKey({"k1": OLD, "k2": OLD})).uses()) == 1


async def test_the_file_is_followed_while_the_router_runs(
    still_scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "REFRESH_SECONDS", 0.01)
    path = tmp_path / "fleet.key"
    path.write_text(f"k1 {OLD.hex()}\n")
    path.chmod(0o600)
    for engine in still_scene.engines:
        engine._fleet_key = DURING
    source = FleetKeyFile(path)
    await still_scene.start_router(fleet_key=source, live=(source,))
    messages: list[dict[str, Any]] = []
    first = await say(still_scene, messages, "one")
    path.write_text(f"k2 {NEW.hex()}\nk1 {OLD.hex()}\n")
    await eventually(lambda: source.current == DURING, "the router has read the new file")
    path.write_text("k3 nonsense\n")
    second = await say(still_scene, messages, "two")
    assert (first.signed_with, second.signed_with) == ("k1", "k2")
    assert second.offer == f"d-offer-{first.turn}"
