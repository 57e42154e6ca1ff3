"""Stamps of adapters and samples of weights: what two hosts may take for the same, and what has changed meanwhile."""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from connector.engine.adapters import RECHECK_SECONDS, AdapterStamps
from connector.engine.samples import NUM_PAGES, PAGE_BYTES, sample_of


class ManualClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def an_adapter(folder: Path, *, number: int = 1, name: str = "sql") -> Any:
    return SimpleNamespace(lora_int_id=number, lora_name=name, lora_path=str(folder))


def stored(folder: Path, weights: bytes = b"w" * 50, **config: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_model.safetensors").write_bytes(weights)
    (folder / "adapter_config.json").write_text(json.dumps({"r": 8, "lora_alpha": 16, **config}))
    return folder


def stamp_of(folder: Path) -> bytes | None:
    return AdapterStamps().of(an_adapter(folder))


def test_equal_files_have_equal_stamps_wherever_they_lie(tmp_path: Path) -> None:
    one = stored(tmp_path / "one", base_model_name_or_path="/models/a")
    other = stored(tmp_path / "other", base_model_name_or_path="/models/b")
    (other / "README.md").write_text("of another copy")
    assert stamp_of(one) == stamp_of(other)
    assert stamp_of(one)


@pytest.mark.parametrize("change", [{"weights": b"w" * 49 + b"x"}, {"weights": b"w" * 51}, {"r": 4}])
def test_other_weights_or_another_rank_have_another_stamp(tmp_path: Path, change: dict[str, Any]) -> None:
    assert stamp_of(stored(tmp_path / "one")) != stamp_of(stored(tmp_path / "other", **change))


def test_no_adapter_and_a_name_of_a_hub_have_an_empty_or_constant_stamp() -> None:
    stamps = AdapterStamps()
    assert stamps.of(None) == b""
    assert stamps.of(an_adapter(Path("org/adapter"))) == stamps.of(an_adapter(Path("org/other"), number=2))


def test_an_adapter_whose_files_change_under_vllm_is_no_longer_known(tmp_path: Path) -> None:
    clock = ManualClock()
    stamps = AdapterStamps(clock)
    folder = stored(tmp_path / "a")
    first = stamps.of(an_adapter(folder))
    stored(folder, b"x" * 50)
    assert stamps.of(an_adapter(folder)) == first  # looked at once a second only
    clock.now += RECHECK_SECONDS
    assert stamps.of(an_adapter(folder)) is None
    stored(folder)
    clock.now += RECHECK_SECONDS
    assert stamps.of(an_adapter(folder)) is None  # what was loaded in between can't be told
    assert stamps.of(an_adapter(folder, number=2)) == first  # unloaded and loaded again


def test_an_unchanged_adapter_stays_known(tmp_path: Path) -> None:
    clock = ManualClock()
    stamps = AdapterStamps(clock)
    folder = stored(tmp_path / "a")
    first = stamps.of(an_adapter(folder))
    for _ in range(3):
        clock.now += RECHECK_SECONDS
        assert stamps.of(an_adapter(folder)) == first


def test_a_removed_adapter_is_no_longer_known(tmp_path: Path) -> None:
    clock = ManualClock()
    stamps = AdapterStamps(clock)
    folder = stored(tmp_path / "a")
    assert stamps.of(an_adapter(folder))
    (folder / "adapter_model.safetensors").unlink()
    clock.now += RECHECK_SECONDS
    assert stamps.of(an_adapter(folder)) is None


def test_an_adapter_that_cannot_be_read_is_not_known(tmp_path: Path) -> None:
    folder = stored(tmp_path / "a")
    (folder / "adapter_config.json").write_text("{")
    assert stamp_of(folder) is None


def test_the_number_of_known_adapters_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connector.engine.adapters.MAX_ADAPTERS", 2)
    stamps = AdapterStamps()
    for number in range(5):
        assert stamps.of(an_adapter(stored(tmp_path / str(number)), number=number))
    assert len(stamps._known) == 2


# ---------------------------------------------------------------- samples


@pytest.mark.parametrize("size", [0, 1, PAGE_BYTES, NUM_PAGES * PAGE_BYTES, NUM_PAGES * PAGE_BYTES + 1, 10**6])
def test_first_and_last_byte_of_a_file_count_whatever_its_size(tmp_path: Path, size: int) -> None:
    path = tmp_path / "weights"
    content = bytearray(os.urandom(size))
    samples = set()
    for position in (None, 0, -1) if size > 1 else (None,):
        changed = bytearray(content)
        if position is not None:
            changed[position] ^= 1
        path.write_bytes(changed)
        samples.add(sample_of([path]))
    assert len(samples) == (3 if size > 1 else 1)


def test_a_small_file_counts_with_every_byte(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    content = bytes(3 * PAGE_BYTES)
    path.write_bytes(content)
    plain = sample_of([path])
    for position in range(0, len(content), 1000):
        path.write_bytes(content[:position] + b"\1" + content[position + 1 :])
        assert sample_of([path]) != plain


def test_names_and_order_of_files_count(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_bytes(b"a")
    other.write_bytes(b"a")
    assert len({sample_of([one]), sample_of([other]), sample_of([one, other]), sample_of([other, one])}) == 4
