"""The event buffer: numbering, batches, ages, bounds, and a control plane that comes and goes."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from connector.agent.events import BufferLimits, Clocks, EventBuffer
from connector.agent.spool import Spool
from connector.protocol import EventBatch, LeaseEnded, LeaseState, TransferRecorded
from tests.connector.agent.samples import transfer


class Time:
    def __init__(self) -> None:
        self.monotonic = 1000.0
        self.wall = 1_700_000_000.0

    def pass_seconds(self, seconds: float) -> None:
        self.monotonic += seconds
        self.wall += seconds

    def clocks(self) -> Clocks:
        return Clocks(monotonic=lambda: self.monotonic, wall=lambda: self.wall)


@pytest.fixture
def time() -> Time:
    return Time()


def buffer(directory: Path, boot: str = "boot-1", *, time: Time | None = None, **limits: int) -> EventBuffer:
    return EventBuffer(boot, Spool(directory), BufferLimits(**limits), (time or Time()).clocks())


def ended(lease_id: str) -> LeaseEnded:
    return LeaseEnded(lease_id=lease_id, state=LeaseState.EXPIRED, reason="ttl")


def fill(events: EventBuffer, num_events: int, incarnation: str = "inc-1") -> None:
    for number in range(num_events):
        events.append(ended(f"lease-{number}"), incarnation)


def sequences(batch: EventBatch | None) -> list[int]:
    assert batch is not None
    return [event.sequence for event in batch.events]


def test_sequence_starts_at_1_and_batches_hold_500(tmp_path: Path) -> None:
    events = buffer(tmp_path)
    fill(events, 501)
    assert sequences(events.next_batch("boot-1")) == list(range(1, 501))
    events.committed("boot-1", 500)
    assert sequences(events.next_batch("boot-1")) == [501]


def test_batch_is_of_one_incarnation(tmp_path: Path) -> None:
    events = buffer(tmp_path)
    fill(events, 2, "inc-1")
    fill(events, 1, "inc-2")
    first = events.next_batch("boot-1")
    events.committed("boot-1", 2)
    second = events.next_batch("boot-1")
    assert first is not None
    assert second is not None
    assert (first.incarnation, sequences(first)) == ("inc-1", [1, 2])
    assert (second.incarnation, sequences(second)) == ("inc-2", [3])


def test_events_gather_while_a_batch_is_under_way(tmp_path: Path) -> None:
    events = buffer(tmp_path)
    fill(events, 2)
    assert sequences(events.next_batch("boot-1")) == [1, 2]
    fill(events, 3)
    assert events.next_batch("boot-1") is None
    events.committed("boot-1", 1)
    assert events.next_batch("boot-1") is None
    events.committed("boot-1", 2)
    assert sequences(events.next_batch("boot-1")) == [3, 4, 5]


def test_uncommitted_events_are_sent_again_after_a_rewind(tmp_path: Path) -> None:
    events = buffer(tmp_path)
    fill(events, 5)
    events.next_batch("boot-1")
    events.committed("boot-1", 2)
    events.rewind()
    assert sequences(events.next_batch("boot-1")) == [3, 4, 5]


def test_commit_of_another_boot_or_of_the_past_changes_nothing(tmp_path: Path) -> None:
    events = buffer(tmp_path)
    fill(events, 3)
    events.committed("another", 3)
    events.committed("boot-1", 0)
    assert events.num_pending == 3


def test_age_grows_and_the_start_of_a_transfer_grows_with_it(tmp_path: Path, time: Time) -> None:
    events = buffer(tmp_path, time=time)
    events.append(transfer(start_age_ms=130.0), "inc-1", age_ms=100.0)
    time.pass_seconds(2.0)
    batch = events.next_batch("boot-1")
    assert batch is not None
    event = batch.events[0].event
    assert isinstance(event, TransferRecorded)
    assert batch.events[0].age_ms == pytest.approx(2100.0)
    assert event.start_age_ms == pytest.approx(2130.0)


def test_step_of_the_wall_clock_does_not_touch_ages_of_this_process(tmp_path: Path, time: Time) -> None:
    events = buffer(tmp_path, time=time)
    events.append(ended("a"), "inc-1")
    time.monotonic += 1.0
    time.wall -= 3600.0
    batch = events.next_batch("boot-1")
    assert batch is not None
    assert batch.events[0].age_ms == pytest.approx(1000.0)


def test_spooled_events_keep_boot_sequence_and_wall_time(tmp_path: Path, time: Time) -> None:
    fill(buffer(tmp_path, "boot-1", time=time), 3)
    time.wall += 60.0
    time.monotonic = 5.0
    restarted = buffer(tmp_path, "boot-2", time=time)
    fill(restarted, 1)
    assert restarted.boot == "boot-1"
    batch = restarted.next_batch("boot-1")
    assert batch is not None
    assert (batch.boot, sequences(batch)) == ("boot-1", [1, 2, 3])
    assert batch.events[0].age_ms == pytest.approx(60_000.0)
    assert restarted.next_batch("boot-2") is None
    restarted.committed("boot-1", 3)
    assert restarted.boot == "boot-2"
    assert sequences(restarted.next_batch("boot-2")) == [1]


def test_age_of_a_spooled_event_is_never_negative(tmp_path: Path, time: Time) -> None:
    fill(buffer(tmp_path, time=time), 1)
    time.wall -= 3600.0
    batch = buffer(tmp_path, "boot-2", time=time).next_batch("boot-1")
    assert batch is not None
    assert batch.events[0].age_ms == 0.0


def test_overflow_drops_the_oldest_and_counts_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    events = buffer(tmp_path, max_events=10)
    fill(events, 15)
    assert (events.num_pending, events.num_dropped) == (10, 5)
    assert caplog.text.count("events_dropped") == 1
    assert sequences(events.next_batch("boot-1")) == list(range(6, 16))


def test_bytes_bound_the_buffer_as_counts_do(tmp_path: Path) -> None:
    events = buffer(tmp_path, max_bytes=2000)
    fill(events, 100)
    assert 0 < events.num_pending < 20
    assert events.num_pending + events.num_dropped == 100


def test_overflow_of_sent_events_keeps_the_place_of_the_unsent(tmp_path: Path) -> None:
    events = buffer(tmp_path, max_events=10, max_batch=4)
    fill(events, 10)
    assert sequences(events.next_batch("boot-1")) == [1, 2, 3, 4]
    fill(events, 2)
    assert events.num_in_flight == 2
    events.committed("boot-1", 4)
    assert sequences(events.next_batch("boot-1")) == [5, 6, 7, 8]


def test_disk_of_a_full_buffer_is_bounded(tmp_path: Path) -> None:
    spool = Spool(tmp_path, segment_bytes=4000)
    events = EventBuffer("boot-1", spool, BufferLimits(max_events=50))
    fill(events, 5000)
    assert spool.num_bytes() < 50 * 400 + 2 * 4000
    events.next_batch("boot-1")
    events.committed("boot-1", 5000)
    fill(events, 1)
    assert spool.num_bytes() < 2 * 4000


class Receiver:
    """Stores as the control plane does: one boot and sequence, batches of the hello's boot only."""

    def __init__(self) -> None:
        self.boot = ""
        self.committed = 0
        self.stored: list[tuple[str, int]] = []

    def hello(self, boot: str) -> int:
        if boot != self.boot:
            self.boot, self.committed = boot, 0
        return self.committed

    def store(self, batch: EventBatch) -> int:
        assert batch.boot == self.boot
        for event in batch.events:
            if event.sequence > self.committed:
                self.stored.append((batch.boot, event.sequence))
                self.committed = event.sequence
        return self.committed


STEPS = st.lists(st.sampled_from(["append", "send", "lose answer", "reconnect", "restart"]), min_size=1, max_size=60)


@given(steps=STEPS)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_event_is_stored_once_and_in_order_whatever_happens(
    steps: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("spool")
    receiver = Receiver()
    expected: list[tuple[str, int]] = []
    num_boots = 1
    events = buffer(directory, "boot-1", max_batch=3)

    def connect() -> str:
        boot = events.boot
        events.committed(boot, receiver.hello(boot))
        events.rewind()
        return boot

    connection = connect()
    own = 0
    for step in [*steps, *["reconnect", "send"] * (len(steps) + num_boots + len(steps))]:
        if step == "append":
            own += 1
            events.append(ended("x"), "inc-1")
            expected.append((f"boot-{num_boots}", own))
        elif step == "restart":
            num_boots, own = num_boots + 1, 0
            events = buffer(directory, f"boot-{num_boots}", max_batch=3)
            connection = connect()
        elif step == "reconnect" or events.boot != connection:
            connection = connect()
        elif batch := events.next_batch(connection):
            answer = receiver.store(batch)
            if step == "send":
                events.committed(connection, answer)
    assert receiver.stored == expected
    assert events.num_pending == 0
