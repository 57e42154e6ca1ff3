"""Events on disk: what is unsent survives, what is committed doesn't come back, damage stays local."""

import errno
import os
import stat
from pathlib import Path

import pytest

from connector.agent.spool import NOT_ON_DISK, Spool, SpooledEvent
from connector.framing import encode_frame
from tests.connector.agent.samples import transfer


def spooled(sequence: int, boot: str = "boot-1") -> SpooledEvent:
    return SpooledEvent(
        boot=boot, incarnation="inc-1", sequence=sequence, occurred_unix_ms=1000.0, event=transfer(f"t{sequence}")
    )


def filled(directory: Path, num_events: int, *, segment_bytes: int = 1024 * 1024) -> tuple[Spool, list[int]]:
    spool = Spool(directory, segment_bytes)
    assert spool.load() == []
    return spool, [spool.append(encode_frame(spooled(number))) for number in range(1, num_events + 1)]


def sequences(spool: Spool) -> list[int]:
    return [item.event.sequence for item in spool.load()]


def segments(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.seg"))


def test_events_are_on_disk_without_closing(tmp_path: Path) -> None:
    filled(tmp_path, 3)
    assert [item.event for item in Spool(tmp_path).load()] == [spooled(1), spooled(2), spooled(3)]
    assert [stat.S_IMODE(path.stat().st_mode) for path in segments(tmp_path)] == [0o600]


def test_committed_events_do_not_come_back(tmp_path: Path) -> None:
    spool, _ = filled(tmp_path, 5)
    spool.note_commit("boot-1", 3)
    spool.note_commit("another-boot", 5)
    assert sequences(Spool(tmp_path)) == [4, 5]


def test_segment_goes_when_none_of_its_events_is_wanted(tmp_path: Path) -> None:
    spool, numbers = filled(tmp_path, 20, segment_bytes=2000)
    assert len(segments(tmp_path)) > 3
    for number in numbers[:-1]:
        spool.forget(number)
    assert [int(path.stem) for path in segments(tmp_path)] == [numbers[-1]]


def test_commit_mark_outlives_the_events_that_it_speaks_of(tmp_path: Path) -> None:
    spool, numbers = filled(tmp_path, 10, segment_bytes=2000)
    spool.note_commit("boot-1", 1)
    spool.append(encode_frame(spooled(11)))
    spool.forget(numbers[0])
    assert numbers[0] == numbers[1], "the first segment must still be wanted"
    assert sequences(Spool(tmp_path)) == list(range(2, 12))


def test_loaded_spool_empties_its_directory_of_what_is_done(tmp_path: Path) -> None:
    spool, _ = filled(tmp_path, 20, segment_bytes=2000)
    spool.note_commit("boot-1", 20)
    spool.close()
    assert sequences(Spool(tmp_path)) == []
    assert segments(tmp_path) == []


def test_numbers_of_segments_go_on_after_a_restart(tmp_path: Path) -> None:
    filled(tmp_path, 1)
    second = Spool(tmp_path)
    second.load()
    assert second.append(encode_frame(spooled(1, "boot-2"))) == 2
    assert [(item.segment, item.event.boot) for item in Spool(tmp_path).load()] == [(1, "boot-1"), (2, "boot-2")]


@pytest.mark.parametrize("num_bytes_kept", [1, 3, 4, 5, 100])
def test_torn_tail_is_cut_off(num_bytes_kept: int, tmp_path: Path) -> None:
    filled(tmp_path, 2)
    (path,) = segments(tmp_path)
    with path.open("ab") as file:
        file.write(encode_frame(spooled(3))[:num_bytes_kept])
    assert sequences(Spool(tmp_path)) == [1, 2]


def test_zeroed_tail_of_a_power_failure_is_cut_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    filled(tmp_path, 2)
    (path,) = segments(tmp_path)
    with path.open("ab") as file:
        file.write(bytes(4096))
    assert sequences(Spool(tmp_path)) == [1, 2]
    assert "num_bytes_cut=4096" in caplog.text


def test_record_of_another_version_is_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    spool, _ = filled(tmp_path, 1)
    spool.append(len(b"\x81\xa4type\xa1X").to_bytes(4, "big") + b"\x81\xa4type\xa1X")
    spool.append(encode_frame(spooled(2)))
    assert sequences(Spool(tmp_path)) == [1, 2]
    assert "num_skipped=1" in caplog.text


def test_other_files_in_the_directory_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.seg").write_text("mine")
    filled(tmp_path, 1)
    assert sequences(Spool(tmp_path)) == [1]
    assert (tmp_path / "notes.seg").read_text() == "mine"


def test_full_disk_is_counted_and_leaves_the_segment_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool, _ = filled(tmp_path, 2)
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:50]))
        assert spool.append(encode_frame(spooled(3))) == NOT_ON_DISK
    assert spool.num_failed_writes == 1
    assert spool.append(encode_frame(spooled(4))) == 1
    assert sequences(Spool(tmp_path)) == [1, 2, 4]


def test_disk_that_refuses_new_files_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(tmp_path)
    spool.load()

    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        assert spool.append(encode_frame(spooled(1))) == NOT_ON_DISK
    spool.forget(NOT_ON_DISK)
    assert spool.num_failed_writes == 1
    assert spool.append(encode_frame(spooled(2))) == 1
