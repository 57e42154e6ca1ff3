"""Lease feeds: the truth about leases, also after gaps, restarts and absences."""

import msgspec
import pytest

from connector.protocol import EngineState, LeaseExtended, LeaseRenewed
from connector.router import placement
from connector.router.live import Fixed
from tests.connector.router.conftest import Scene, assistant, user
from tests.connector.router.waiting import eventually

LONGER = [user("hi"), assistant("Hello you"), user("more")]


async def test_restarted_router_rebuilds_sessions_and_leases_from_the_feeds(scene: Scene) -> None:
    await scene.chat([user("hi")])
    await scene.chat(LONGER)
    await scene.until_leased(2)
    before = scene.prefill.received[-1].envelope
    await scene.stop_router()
    await scene.start_router()
    await scene.chat([*LONGER, assistant("Hello you"), user("after")])
    leg = scene.prefill.received[-1]
    assert before is not None
    assert leg.envelope is not None
    assert leg.offer == f"d-offer-{before.turn_id}"
    assert leg.envelope.session_id == before.session_id
    await eventually(lambda: len(scene.control.turns) == 3, "the turns are recorded")
    last = scene.control.turns[-1]
    assert (last.index, last.parent_turn_id) == (2, before.turn_id)


async def test_gap_in_the_numbers_brings_a_fresh_snapshot(scene: Scene) -> None:
    await scene.chat([user("hi")])
    await scene.until_leased(1)
    feed = scene.decode.feed
    feed.leases.clear()
    feed.skip_numbers()
    await feed.change(EngineState.READY, feed.incarnation)
    await eventually(lambda: feed.num_connections == 2, "the router dials again")
    await eventually(lambda: len(scene.live.book) == 0, "the snapshot is taken as the truth")
    assert scene.metric("feed_gaps_total") == 1


async def test_lost_feed_keeps_its_leases_and_comes_back(scene: Scene) -> None:
    await scene.chat([user("hi")])
    await scene.until_leased(1)
    await scene.decode.feed.stop()
    await eventually(lambda: scene.live.feeds.num_connected == 1, "the feed is lost")
    await scene.chat(LONGER)
    assert scene.prefill.received[-1].offer is not None
    await scene.decode.feed.start()
    await eventually(lambda: scene.live.feeds.num_connected == 2, "the feed is back")
    assert scene.metric("feeds_connected") == 2


async def test_new_incarnation_drops_every_lease_at_once(scene: Scene) -> None:
    await scene.chat([user("hi")])
    await scene.until_leased(1)
    await scene.decode.feed.change(EngineState.READY, "d0-2")
    await eventually(lambda: len(scene.live.book) == 0, "the lease is gone")
    await scene.chat(LONGER)
    assert scene.prefill.received[-1].offer is None
    await scene.until_leased(1)
    await scene.chat([*LONGER, assistant("Hello you"), user("x")])
    assert scene.prefill.received[-1].offer is not None


async def test_incarnation_told_by_the_control_plane_counts_while_the_feed_is_away(scene: Scene) -> None:
    await scene.chat([user("hi")])
    await scene.until_leased(1)
    feed = scene.decode.feed
    await feed.stop()
    await eventually(lambda: scene.live.feeds.num_connected == 1, "the feed is lost")
    feed.incarnation = "d0-2"
    await scene.publish()
    assert len(scene.live.book) == 0


async def test_renewed_lease_is_offered_with_its_new_token(scene: Scene) -> None:
    scene.decode.ttl = 1.0
    await scene.chat([user("hi")])
    await scene.until_leased(1)
    (lease_id,) = scene.decode.feed.leases
    extended = LeaseExtended(lease_id=lease_id, remaining_seconds=100)
    await scene.decode.feed.push(LeaseRenewed(lease=extended, offer="renewed"))
    await scene.decode.feed.push(
        LeaseRenewed(lease=msgspec.structs.replace(extended, lease_id="unheard"), offer="other")
    )
    await scene.chat(LONGER)
    assert scene.prefill.received[-1].offer == "renewed"


async def test_pinned_lease_never_runs_out(scene: Scene) -> None:
    scene.decode.ttl = 1.0
    await scene.chat([user("hi")])
    await scene.until_leased(1)
    (lease_id,) = scene.decode.feed.leases
    pinned = LeaseExtended(lease_id=lease_id, remaining_seconds=0, pinned=True)
    await scene.decode.feed.push(LeaseRenewed(lease=pinned, offer="pinned"))
    await scene.chat(LONGER)
    assert scene.prefill.received[-1].offer == "pinned"


async def test_stalled_engine_gets_no_turn(scene: Scene) -> None:
    await scene.prefill.feed.change(EngineState.STALLED, scene.prefill.feed.incarnation)
    await eventually(lambda: not scene.live.fleet.get("p0").is_up, "the engine is seen stalled")  # type: ignore[union-attr]
    await scene.chat([user("hi")])
    assert scene.prefill.received == []


@pytest.mark.parametrize("fault", ["token", "name"])
async def test_feed_of_another_engine_or_with_another_token_is_refused(still_scene: Scene, fault: str) -> None:
    scene = still_scene
    if fault == "name":
        scene.decode.feed.engine_name = "d9"
        await scene.start_router(is_waiting=False)
    else:
        await scene.start_router(is_waiting=False, feed_token=Fixed("wrong"))
    await eventually(lambda: scene.live.fleet.get("d0"), "the fleet is known")
    await scene.live.feeds.wait_until_tried(2)
    assert scene.live.fleet.get("d0").feed_state is None  # type: ignore[union-attr]
    await eventually(lambda: scene.live.models.union() != b'{"data":[],"object":"list"}', "models are known")
    await scene.chat([user("hi")])


async def test_turn_waits_for_a_notice_that_is_about_to_come_but_not_long(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "NOTICE_WAIT_SECONDS", 10.0)  # this machine may be busy
    scene.decode.grant_delay = 0.2
    await scene.chat([user("hi")])
    await scene.chat(LONGER)
    assert scene.prefill.received[-1].offer is not None
    assert scene.metric('notice_waits_total{result="arrived"}') == 1
    monkeypatch.setattr(placement, "NOTICE_WAIT_SECONDS", 0.05)
    scene.decode.grant_delay = 3.0
    messages = [*LONGER, assistant("Hello you"), user("late")]
    await scene.until_leased(2)
    await scene.chat(messages)
    await scene.chat([*messages, assistant("Hello you"), user("later")])
    assert scene.metric('notice_waits_total{result="timeout"}') == 1
    await scene.chat([*messages, assistant("Hello you"), user("later"), assistant("Hello you"), user("last")])
    assert scene.metric('notice_waits_total{result="timeout"}') == 1, "an engine that is late isn't waited for again"
    await scene.until_leased(5)
    assert not scene.live.fleet.get("d0").is_late_with_notices  # type: ignore[union-attr]


async def test_engine_that_grants_nothing_delays_only_one_turn(scene: Scene) -> None:
    scene.decode.grants_leases = False
    messages = [user("hi")]
    for number in range(4):
        await scene.chat(messages)
        messages += [assistant("Hello you"), user(f"{number}")]
    assert scene.metric('notice_waits_total{result="timeout"}') == 1
