"""The dashboard's socket, spoken to by a real websocket client while rows change through actions."""

import socket
import threading
import time
from datetime import timedelta

import pytest
from django.utils import timezone
from websockets.exceptions import ConnectionClosedError, InvalidStatus

from connector.protocol import AgentHello, Direction, LeaseState, PolicyAck, PolicyValues
from controlplane.accounts.models import User
from controlplane.dashboard.consumers import (
    CLOSE_BAD_MESSAGE,
    CLOSE_UNAUTHENTICATED,
    HEARTBEAT_SECONDS,
    MIN_INTERVAL_SECONDS,
)
from controlplane.dashboard.pace import MAX_IN_FLIGHT
from controlplane.fleet.liveness import register_agent
from controlplane.placement import actions as placement
from controlplane.policy.actions import publish_policy, record_ack
from controlplane.policy.models import EnforcerKind
from controlplane.transfers import actions as transfers
from tests.controlplane.dashboard.page import Frame, OpenPage, log_in, opened_page
from tests.controlplane.dashboard.server import ControlPlaneServer
from tests.controlplane.placement.events import SESSION_ID, ended, granted, recorded
from tests.controlplane.transfers.events import moved

pytestmark = pytest.mark.django_db(transaction=True)


def store_transfer(transfer_id: str = "transfer-1", **changes: object) -> None:
    event = moved(transfer_id, **changes)
    transfers.apply_event(event, engine_name=event.target_engine, incarnation="i", occurred_at=timezone.now())


def grant_lease(lease_id: str = "lease-1", **changes: object) -> None:
    event = granted(lease_id, **changes)
    placement.apply_event(event, engine_name="d0", incarnation="i", occurred_at=timezone.now())


def join_engine(name: str = "d0") -> None:
    hello = AgentHello(protocol=1, boot="b1", engine_name=name, engine_url="http://e", feed_url="ws://f")
    register_agent(hello, connection="test", auto_approve=True)


class TestDoor:
    def test_visitor_without_login_is_told_by_the_close_code(self, control_plane: ControlPlaneServer) -> None:
        with opened_page(control_plane.ws_url, None) as page, pytest.raises(ConnectionClosedError) as closed:
            page.next_frame()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == CLOSE_UNAUTHENTICATED

    @pytest.mark.parametrize("origin", ["http://evil.example", None])
    def test_login_is_worth_nothing_from_another_origin(
        self, control_plane: ControlPlaneServer, session_key: str, origin: str | None
    ) -> None:
        with pytest.raises(InvalidStatus) as refused, opened_page(control_plane.ws_url, session_key, origin=origin):
            pass
        assert refused.value.response.status_code == 403

    def test_logout_ends_an_open_page(self, page: OpenPage, operator: User) -> None:
        assert page.next_frame()["type"] == "snapshot"
        operator.is_active = False
        operator.save()
        with pytest.raises(ConnectionClosedError) as closed:
            page.frame_with(lambda frame: False)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == CLOSE_UNAUTHENTICATED

    @pytest.mark.parametrize(
        "message",
        [
            "not json",
            "[]",
            '{"type":"drop tables"}',
            '{"type":"seen","sequence":99}',
            '{"type":"show_turns","session":""}',
        ],
    )
    def test_message_that_makes_no_sense_closes_the_page(self, page: OpenPage, message: str) -> None:
        page.next_frame()
        page.send(message)
        with pytest.raises(ConnectionClosedError) as closed:
            page.frame_with(lambda frame: False)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == CLOSE_BAD_MESSAGE


class TestSnapshot:
    def test_shows_what_is_stored(self, control_plane: ControlPlaneServer, session_key: str) -> None:
        join_engine()
        store_transfer()
        placement.apply_event(recorded(), engine_name="", incarnation="", occurred_at=timezone.now())
        grant_lease()
        with opened_page(control_plane.ws_url, session_key) as page:
            frame = page.next_frame()
        assert (frame["type"], frame["reason"], frame["sequence"]) == ("snapshot", "connect", 1)
        assert [(engine["name"], engine["state"]) for engine in frame["engines"]] == [("d0", "down")]
        assert frame["agents"][0]["connected"] is True
        assert frame["transfers"][0]["direction"] == "D->P"
        assert frame["turns"][0]["session"] == SESSION_ID
        (session,) = frame["sessions"]
        assert session["last_turn"]["ttft_ms"] == 180.0
        assert session["placement"]["state"] == "held"
        assert 470_000 < session["placement"]["remaining_ms"] <= 480_000
        assert frame["policy"]["values"]["kv_recompute_threshold"] == 64
        assert frame["truncated"] == []

    def test_times_are_ages_and_never_negative(self, control_plane: ControlPlaneServer, session_key: str) -> None:
        ahead = timezone.now() + timedelta(minutes=5)
        transfers.apply_event(moved(start_age_ms=0.0), engine_name="p0", incarnation="i", occurred_at=ahead)
        with opened_page(control_plane.ws_url, session_key) as page:
            assert page.next_frame()["transfers"][0]["age_ms"] == 0

    def test_held_lease_is_shown_before_a_later_one_that_ended(
        self, control_plane: ControlPlaneServer, session_key: str
    ) -> None:
        grant_lease("kept")
        grant_lease("gone")
        placement.apply_event(ended("gone"), engine_name="d0", incarnation="i", occurred_at=timezone.now())
        with opened_page(control_plane.ws_url, session_key) as page:
            assert page.next_frame()["sessions"][0]["placement"]["id"] == "kept"


class TestUpdates:
    def test_new_transfer_arrives_alone_and_in_sequence(self, page: OpenPage) -> None:
        snapshot = page.next_frame()
        store_transfer(direction=Direction.PREFILL_TO_DECODE, source_engine="p0", target_engine="d0")
        frame = page.frame_with(lambda frame: frame["type"] == "update")
        assert [row["direction"] for row in frame["transfers"]] == ["P->D"]
        assert {"engines", "sessions", "policy"}.isdisjoint(frame)
        assert frame["sequence"] > snapshot["sequence"]

    def test_lease_shows_its_grant_and_its_end(self, page: OpenPage) -> None:
        page.next_frame()
        grant_lease()
        frame = page.frame_with(lambda frame: frame.get("sessions"))
        assert frame["sessions"][0]["placement"]["remaining_ms"] > 0
        event = ended(state=LeaseState.EXPIRED, reason="ttl")
        placement.apply_event(event, engine_name="d0", incarnation="i", occurred_at=timezone.now())
        shown = page.frame_with(lambda frame: frame.get("sessions"))["sessions"][0]["placement"]
        assert (shown["state"], shown["end_reason"], shown["remaining_ms"]) == ("expired", "ttl", None)

    def test_burst_is_coalesced_to_four_frames_a_second(self, page: OpenPage) -> None:
        page.next_frame()
        started, frames, shown = time.monotonic(), 0, set()
        for number in range(60):
            store_transfer(f"burst-{number}")
        while len(shown) < 60:
            frame = page.next_frame()
            frames += 1
            shown |= {row["id"] for row in frame.get("transfers", [])}
        elapsed = time.monotonic() - started
        assert frames <= 1 + elapsed / MIN_INTERVAL_SECONDS

    def test_policy_and_its_acks_arrive_as_they_happen(self, page: OpenPage) -> None:
        join_engine()
        page.next_frame()
        revision = publish_policy(scope="fleet", values={"kv_recompute_threshold": 900}, author="user:o", reason="test")
        policy = page.frame_with(lambda frame: frame.get("policy"))["policy"]
        assert (policy["revision"], policy["values"]["kv_recompute_threshold"]) == (revision.number, 900)
        assert [(ack["enforcer"], ack["state"]) for ack in policy["acks"]] == [("d0", "waiting")]
        assert policy["revisions"][0]["reason"] == "test"

        read_back = PolicyValues(kv_recompute_threshold=64)
        answer = PolicyAck(enforcer="d0", revision=revision.number, values=read_back)
        record_ack(answer, kind=EnforcerKind.ENGINE, enforcer="d0", told=None)
        (ack,) = page.frame_with(lambda frame: frame.get("policy"))["policy"]["acks"]
        assert ack["state"] == "drifted"
        assert ack["drift"] == [{"field": "kv_recompute_threshold", "expected": 900, "actual": 64}]
        assert ack["latency_ms"] > 0

    def test_quiet_page_hears_a_heartbeat(self, page: OpenPage) -> None:
        page.next_frame()
        assert page.next_frame(timeout=2 * HEARTBEAT_SECONDS + 1)["type"] == "heartbeat"

    def test_opened_session_brings_its_turns(self, page: OpenPage) -> None:
        page.next_frame()
        placement.apply_event(recorded(), engine_name="", incarnation="", occurred_at=timezone.now())
        page.frame_with(lambda frame: frame.get("turns"))
        page.send({"type": "show_turns", "session": SESSION_ID})
        frame = page.frame_with(lambda frame: frame.get("turns"))
        assert [turn["session"] for turn in frame["turns"]] == [SESSION_ID]


class TestBrokenPage:
    def test_that_breaks_off_leaves_no_error_behind(self, control_plane: ControlPlaneServer, session_key: str) -> None:
        with opened_page(control_plane.ws_url, session_key) as page:
            page.next_frame()
            before = control_plane.log.count("event=dashboard_closed")
            page.socket.socket.shutdown(socket.SHUT_RDWR)
            store_transfer()
        pause, deadline = threading.Event(), time.monotonic() + 20
        while control_plane.log.count("event=dashboard_closed") == before:
            assert time.monotonic() < deadline
            pause.wait(0.1)
        assert "dashboard_failed" not in control_plane.log


class TestSlowPage:
    def frames_until_silent(self, page: OpenPage) -> list[Frame]:
        frames = []
        try:
            while True:
                frames.append(page.next_frame(timeout=HEARTBEAT_SECONDS + 1))
        except TimeoutError:
            return frames

    def test_gets_no_more_than_it_can_hold_and_then_a_fresh_snapshot(self, page: OpenPage) -> None:
        page.is_confirming = False
        for number in range(MAX_IN_FLIGHT):
            store_transfer(f"early-{number}")
            page.next_frame()
        assert self.frames_until_silent(page) == []
        for number in range(5):
            store_transfer(f"missed-{number}")
        page.send({"type": "seen", "sequence": MAX_IN_FLIGHT})
        frame = page.next_frame()
        assert (frame["type"], frame["reason"], frame["sequence"]) == ("snapshot", "resync", MAX_IN_FLIGHT + 1)
        assert frame["num_dropped"] >= 5
        assert {row["id"] for row in frame["transfers"]} >= {f"missed-{number}" for number in range(5)}

    def test_does_not_hold_up_another_page(
        self, page: OpenPage, control_plane: ControlPlaneServer, operator: User
    ) -> None:
        page.is_confirming = False
        page.next_frame()
        with opened_page(control_plane.ws_url, log_in(operator)) as other:
            other.next_frame()
            for number in range(2 * MAX_IN_FLIGHT):
                store_transfer(f"t-{number}")
                other.frame_with(lambda frame: frame.get("transfers"))
