"""The whole list of seams, and which of them matter to which releases."""

from connector.engine.versions import RELEASES, Release
from tests.contract.releases.core_seams import CORE_SEAMS
from tests.contract.releases.differences import DIFFERENCES, Difference
from tests.contract.releases.nixl_seams import NIXL_SEAMS
from tests.contract.releases.seam import Seam, Value

SEAMS: dict[str, Seam] = {seam.key: seam for seam in (*NIXL_SEAMS, *CORE_SEAMS)}
NEWEST = list(RELEASES)[-1]
NEWEST_OF_OLDER = [version for version, release in RELEASES.items() if not release.reports_failed_receives][-1]

OLDER_ONLY = frozenset(
    {
        "connector.bind_gpu_block_pool",
        "core: the block pool is bound",
        "core: failed blocks are handled before the connector hears",
        "core: nothing loaded, nothing kept",
        "core: a failed receive recomputes from its first failed block",
        "workers: results, blocks with errors, then report",
        "worker.get_finished",
        "facade.get_finished",
        "connector.get_finished",
        "blocks.reset_prefix_cache",
        "connector.set_xfer_handshake_metadata",
    }
)
"""What only the ``older_*`` modules rely on; compared with the newest release that they serve."""


def matters(key: str, release: Release) -> bool:
    return key not in OLDER_ONLY or not release.reports_failed_receives


def reference_of(key: str) -> str:
    return NEWEST_OF_OLDER if key in OLDER_ONLY else NEWEST


def order_of(version: str) -> int:
    return list(RELEASES).index(version)


def difference_of(key: str, version: str) -> Difference | None:
    """The entry that explains how the seam is in this release: the one that ends soonest after it."""
    at = order_of(version)
    found = [
        difference
        for difference in DIFFERENCES
        if difference.seam == key
        and at < order_of(difference.since)
        and (not difference.start or at >= order_of(difference.start))
    ]
    return min(found, key=lambda difference: order_of(difference.since), default=None)


def expected_value(key: str, version: str, reference: Value) -> Value:
    difference = difference_of(key, version)
    return reference if difference is None else difference.value


def moved_sentence(key: str, version: str, was: Value, now: Value) -> str:
    """In plain words: which seam moved, in which release, and what of ours uses it."""
    return f"vLLM {version}: the seam '{key}', used for {SEAMS[key].used_by}, was {_told(was)} and is {_told(now)}"


def _told(value: Value) -> str:
    if value is None or value is False:
        return "absent"
    if value is True:
        return "there"
    return f"({', '.join(value)})" if value else "without any of the names that we use"
