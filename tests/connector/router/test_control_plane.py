"""The control plane's connection: fleet and policy in, acks and events out, away for any time."""

import logging
import stat
from pathlib import Path

import msgspec
import pytest

from connector.protocol import PolicyPatch, PolicyValues, TurnRecorded
from connector.router.reconnect import Complaints
from connector.router.spool import MAX_PENDING, EventSpool
from tests.connector.router.conftest import Scene, assistant, user
from tests.connector.router.waiting import eventually


async def test_snapshot_is_obeyed_acked_with_values_read_back_and_kept_on_disk(scene: Scene) -> None:
    scene.values = PolicyValues(kv_recompute_threshold=77, trace_sampling=0.5)
    await scene.publish()
    await eventually(lambda: scene.control.acks[-1].revision == scene.revision, "the revision is acked")
    ack = scene.control.acks[-1]
    assert ack.enforcer == "router-0"
    assert ack.values == scene.values
    saved = scene.state_dir / "fleet.json"
    await eventually(lambda: b'"revision":2' in saved.read_bytes(), "the snapshot is on disk")
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600
    assert stat.S_IMODE(scene.state_dir.stat().st_mode) == 0o700


async def test_status_is_reported(scene: Scene) -> None:
    await scene.chat([user("hi")])
    await eventually(lambda: scene.control.statuses and scene.control.statuses[-1].num_leases == 1, "the lease is told")


async def test_turns_go_on_while_the_control_plane_is_away_and_events_come_later_once(scene: Scene) -> None:
    await scene.chat([user("hi")])
    await eventually(lambda: len(scene.control.turns) == 1, "the turn is recorded")
    await scene.control.stop()
    messages = [user("hi")]
    for number in range(3):
        messages += [assistant("Hello you"), user(f"while away {number}")]
        await scene.chat(messages)
    assert scene.prefill.received[-1].offer is not None
    await scene.control.start()
    await eventually(lambda: len(scene.control.turns) == 4, "all events came")
    assert [turn.index for turn in scene.control.turns] == [0, 1, 2, 3]
    assert len(scene.control.hellos) == 2
    assert len({hello.boot for hello in scene.control.hellos}) == 1


async def test_uncommitted_batch_is_sent_again_after_a_reconnect(scene: Scene) -> None:
    scene.control.is_committing = False
    await scene.chat([user("hi")])
    await eventually(lambda: scene.control.batches, "the batch arrives")
    assert scene.metric("events_pending") == 0  # sampled by the endpoint only
    await scene.control.stop()
    scene.control.is_committing = True
    await scene.control.start()
    await eventually(lambda: len(scene.control.turns) == 1, "the event is stored")
    assert scene.control.batches[0].events[0].sequence == scene.control.batches[1].events[0].sequence == 1
    assert scene.control.ages_ms[0] > scene.control.batches[0].events[0].age_ms


async def test_router_that_starts_without_a_control_plane_uses_its_last_snapshot(scene: Scene) -> None:
    await scene.chat([user("hi")])
    saved = scene.state_dir / "fleet.json"
    await eventually(saved.exists, "the snapshot is on disk")
    await scene.stop_router()
    await scene.control.stop()
    await scene.start_router()
    await scene.chat([user("hi"), assistant("Hello you"), user("more")])
    assert scene.prefill.received[-1].offer is not None
    await scene.stop_router()
    await scene.control.start()
    await scene.start_router()
    await eventually(lambda: len(scene.control.turns) == 2, "both turns are stored")
    assert len({hello.boot for hello in scene.control.hellos}) == 1


async def test_first_start_without_a_control_plane_says_503(still_scene: Scene) -> None:
    scene = still_scene
    await scene.control.stop()
    await scene.start_router(is_waiting=False)
    async with scene.post("/v1/chat/completions", {"model": "tiny", "messages": [user("hi")]}) as response:
        assert response.status == 503
        assert (await response.json())["error"]["code"] == "no_fleet"
    async with scene.client.get(f"{scene.url}/readyz") as response:
        assert response.status == 503
    async with scene.client.get(f"{scene.url}/healthz") as response:
        assert (await response.json())["status"] == "ok"


@pytest.mark.parametrize("text", ["{", '{"type": "FromTheFuture"}', '{"type": "FleetSnapshot", "revision": "x"}'])
async def test_message_of_another_version_is_ignored(scene: Scene, text: str) -> None:
    await scene.control.send_raw(text)
    await scene.publish()
    assert len(scene.control.hellos) == 1
    await scene.chat([user("hi")])


async def test_refused_router_tries_again(still_scene: Scene) -> None:
    scene = still_scene
    scene.control.refusal = "unknown router"
    await scene.start_router(is_waiting=False)
    await eventually(lambda: len(scene.control.hellos) >= 2, "a second try")
    scene.control.refusal = ""
    await scene.until_connected()


def recorded(number: int) -> TurnRecorded:
    return TurnRecorded(
        turn_id=f"turn-{number}",
        session_id="s",
        parent_turn_id="",
        tenant="default",
        index=number,
        model="tiny",
        prefill_engine="p0",
        decode_engine="d0",
        status="ok",
        http_status=200,
        stream=True,
        started_age_ms=5.0,
        prefill_ms=1.0,
        ttft_ms=2.0,
        duration_ms=5.0,
    )


async def test_spool_survives_restart_and_damage(tmp_path: Path) -> None:
    spool = EventSpool(tmp_path)
    for number in range(700):
        spool.append(recorded(number))
    spool.commit(100)
    await spool.write()
    path = tmp_path / "events.spool"
    path.write_bytes(path.read_bytes()[:-5])
    again = EventSpool(tmp_path)
    assert again.boot == spool.boot
    batch = again.batch()
    assert batch is not None
    assert len(batch.events) == 500
    again.append(recorded(1000))
    again.commit(698)
    rest = again.batch()
    assert rest is not None
    assert [(e.sequence, e.event.turn_id) for e in rest.events] == [  # type: ignore[union-attr]
        (699, "turn-698"),
        (700, "turn-1000"),
    ]
    path.write_bytes(b"\x00\x00\x00\x04oops")
    assert EventSpool(tmp_path).boot != spool.boot


async def test_numbering_goes_on_behind_what_the_control_plane_has(tmp_path: Path) -> None:
    spool = EventSpool(tmp_path)
    spool.commit(41)
    spool.append(recorded(0))
    spool.close()
    again = EventSpool(tmp_path).batch()
    assert again is not None
    assert again.events[0].sequence == 42


async def test_spool_is_bounded_and_counts_what_it_drops(tmp_path: Path) -> None:
    spool = EventSpool(tmp_path)
    for number in range(MAX_PENDING + 5):
        spool.append(recorded(number))
    assert (spool.num_pending, spool.num_dropped) == (MAX_PENDING, 5)
    batch = spool.batch()
    assert batch is not None
    assert batch.events[0].sequence == 6


async def test_full_disk_costs_nothing_but_safety(tmp_path: Path) -> None:
    spool = EventSpool(tmp_path)
    spool.append(recorded(0))
    (tmp_path / "events.spool").unlink()
    (tmp_path / "events.spool").mkdir()
    await spool.write()
    assert spool.num_pending == 1
    (tmp_path / "events.spool").rmdir()
    await spool.write()
    assert EventSpool(tmp_path).num_pending == 1


def test_patches_of_a_snapshot_survive_the_disk(tmp_path: Path) -> None:
    from connector.router.fleet import EMPTY_SNAPSHOT
    from connector.router.store import load_snapshot, save_snapshot

    snapshot = msgspec.structs.replace(EMPTY_SNAPSHOT, tenant_patches={"t": PolicyPatch(kv_recompute_threshold=0)})
    save_snapshot(tmp_path, snapshot)
    assert load_snapshot(tmp_path) == snapshot
    (tmp_path / "fleet.json").write_text("{")
    assert load_snapshot(tmp_path) is None


def test_peer_that_stays_away_is_complained_of_once(caplog: pytest.LogCaptureFixture) -> None:
    complaints = Complaints(logging.getLogger("test.peer"), logging.WARNING)
    for reason in ("refused", "refused", "reset", "refused"):
        complaints.tell("peer_lost", "p0", reason)
    assert [record.args[2] for record in caplog.records if record.levelno == logging.WARNING] == ["refused", "reset"]  # type: ignore[index]
    complaints.forget()
    complaints.tell("peer_lost", "p0", "refused")
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 3
