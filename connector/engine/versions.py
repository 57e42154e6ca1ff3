"""Which releases of vLLM this connector starts on, how each was proved, and what it can't do there.

The table is exact: a release that isn't in it is refused, since an unchecked one could reuse wrong KV silently. Its
facts are checked against the sources of every release by ``tests/contract/test_release_seams.py``.
"""

import re

import msgspec

RELEASE_NUMBER = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")


class Release(msgspec.Struct, frozen=True, kw_only=True):
    """One release. What is false here is supplied by the ``older_*`` modules, which say how.

    ``is_run``: real engines were run, with transfers in both directions; else its class layout was checked only.
    ``has_split_classes``: scheduler and worker half have a base class and one for pulls.
    ``reports_failed_receives``: a failed receive is named, recomputed from zero, and told from one that only notifies.
    ``hears_arrivals``: the connector is told of a new request; leases are renewed by heartbeats; an engine that holds
    leases keeps stepping. ``keys_ranks_by_stage``: a rank is (pipeline stage, tensor rank), else a tensor rank.
    ``spares_last_tokens``: P leaves the last tokens of a prompt to D, without which windows aren't exact.
    ``reaps_in_any_order``: held blocks expire by their own deadline, else never before those that were held earlier.
    """

    version: str
    is_run: bool = False
    has_split_classes: bool = True
    reports_failed_receives: bool = True
    hears_arrivals: bool = True
    keys_ranks_by_stage: bool = True
    spares_last_tokens: bool = True
    reaps_in_any_order: bool = True
    unsupported_fields: tuple[str, ...] = ()


def _releases(*versions: str, **facts: bool | tuple[str, ...]) -> list[Release]:
    return [Release(version=version, **facts) for version in versions]  # type: ignore[arg-type]  # as named there


OLDER = {"spares_last_tokens": False, "reaps_in_any_order": False}
OLDEST = {"reports_failed_receives": False, **OLDER}

RELEASES: dict[str, Release] = {
    release.version: release
    for release in (
        *_releases(
            "0.21.0",
            has_split_classes=False,
            hears_arrivals=False,
            keys_ranks_by_stage=False,
            # No heartbeats renew a handoff, and an engine that only holds leases takes no steps that would end one.
            unsupported_fields=("decoder_kv_blocks_ttl", "kv_lease_duration"),
            **OLDEST,
        ),
        *_releases("0.22.0", "0.22.1", "0.23.0", has_split_classes=False, keys_ranks_by_stage=False, **OLDEST),
        *_releases("0.24.0", "0.25.0", "0.25.1", keys_ranks_by_stage=False, **OLDEST),
        *_releases("0.26.0", "0.27.0", "0.27.1", "0.28.0", "0.29.0", **OLDEST),
        *_releases("0.30.0", **OLDER),
        *_releases("0.31.0"),
        *_releases("0.32.0", is_run=True),
    )
}


class UnsupportedReleaseError(RuntimeError):
    """The engine must not start: its text is one sentence that says what to install."""


def require_release(version: str, moved_seam: str = "") -> Release:
    """The release's entry. Raises ``UnsupportedReleaseError``; ``moved_seam``: the first one known to have moved."""
    public = version.split("+", maxsplit=1)[0]
    release = RELEASES.get(public)
    if release is None:
        raise UnsupportedReleaseError(refusal_sentence(version, moved_seam))
    return release


def refusal_sentence(version: str, moved_seam: str = "") -> str:
    known = list(RELEASES)
    place = _place(version.split("+", maxsplit=1)[0], known)
    moved = f" (first seam that moved: {moved_seam})" if moved_seam else ""
    return (
        f"vLLM {version} is {place}{moved}: Backhaul's connector starts on the checked releases "
        f"{known[0]} to {known[-1]} only; install vLLM {known[-1]}"
    )


def _place(version: str, known: list[str]) -> str:
    numbers = _numbers(version)
    if not numbers:
        return "no release that can be told by its number"
    if numbers < _numbers(known[0]):
        return "too old"
    if numbers > _numbers(known[-1]):
        return "newer than any that was checked"
    return "not among those that were checked"


def _numbers(version: str) -> tuple[int, ...]:
    found = RELEASE_NUMBER.match(version)
    return tuple(int(part or 0) for part in found.groups()) if found else ()
