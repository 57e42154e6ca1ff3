"""Which vLLM is let in, and the one sentence that any other release is refused with."""

from pathlib import Path

import pytest
from msgspec import structs

from connector.engine.versions import RELEASES, UnsupportedReleaseError, refusal_sentence, require_release
from connector.protocol import PolicyValues

CHECKED = [
    *("0.21.0", "0.22.0", "0.22.1", "0.23.0", "0.24.0", "0.25.0", "0.25.1", "0.26.0"),
    *("0.27.0", "0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0"),
]


def test_exactly_the_checked_releases_are_let_in() -> None:
    assert list(RELEASES) == CHECKED
    assert [require_release(version).version for version in CHECKED] == CHECKED


def test_a_build_for_other_hardware_is_the_same_release() -> None:
    assert require_release("0.32.0+cpu") is RELEASES["0.32.0"]


@pytest.mark.parametrize(
    ("version", "place"),
    [
        ("0.20.9", "too old"),
        ("0.9.2", "too old"),
        ("0.33.0", "newer than any that was checked"),
        ("0.33.0rc1", "newer than any that was checked"),
        ("0.32.1", "newer than any that was checked"),
        ("1.0", "newer than any that was checked"),
        ("0.31.9", "not among those that were checked"),
        ("0.32.0rc1", "not among those that were checked"),
        ("0.32.0.dev3+gabc", "not among those that were checked"),
        ("dev", "no release that can be told by its number"),
        ("", "no release that can be told by its number"),
    ],
)
def test_any_other_release_is_refused_in_one_sentence(version: str, place: str) -> None:
    with pytest.raises(UnsupportedReleaseError) as refused:
        require_release(version)
    sentence = str(refused.value)
    assert sentence == (
        f"vLLM {version} is {place}: Backhaul's connector starts on the checked releases 0.21.0 to 0.32.0 only; "
        "install vLLM 0.32.0"
    )
    assert "\n" not in sentence


def test_the_sentence_names_the_first_seam_that_moved_where_it_is_known() -> None:
    sentence = refusal_sentence("0.33.0", "vllm.nixl:Worker.get_transfer_results")
    assert "(first seam that moved: vllm.nixl:Worker.get_transfer_results):" in sentence


def test_only_the_release_that_was_run_says_so() -> None:
    assert [release.version for release in RELEASES.values() if release.is_run] == ["0.32.0"]


def test_unsupported_fields_are_fields_of_the_policy() -> None:
    known = {field.name for field in structs.fields(PolicyValues)}
    for release in RELEASES.values():
        assert set(release.unsupported_fields) <= known
    assert RELEASES["0.21.0"].unsupported_fields == ("decoder_kv_blocks_ttl", "kv_lease_duration")
    assert not any(release.unsupported_fields for version, release in RELEASES.items() if version != "0.21.0")


def readme_rows() -> dict[str, list[str]]:
    """The README's table: cells by release."""
    text = (Path(__file__).parents[3] / "README.md").read_text()
    section = text.split("## Releases of vLLM", 1)[1].split("\n## ", 1)[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:3] == "| 0"]
    return {version: row[1:] for row in rows for version in row[0].split(", ")}


def test_the_readme_says_of_each_release_what_the_table_says() -> None:
    rows = readme_rows()
    assert set(rows) == set(RELEASES)
    for version, release in RELEASES.items():
        how, unsupported, caches = rows[version]
        assert how == ("run for real" if release.is_run else "checked, not run")
        assert unsupported == (", ".join(f"`{field}`" for field in release.unsupported_fields) or "nothing")
        only_plain = "full attention, one cache group"
        assert caches == ("full attention, windows, recurrent state" if release.spares_last_tokens else only_plain)
