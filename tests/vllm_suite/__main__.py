"""``make test-vllm``: vLLM's own unit tests for its NIXL pull connector, first as they are, then with our class in it.

Fails when a test ends otherwise with ours and ``known_differences.toml`` doesn't say why, and when a difference listed
there is none any more. A test that seems to differ is run once more by itself first: a few of them measure time.
"""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from deploy.local.console import Console
from deploy.local.environment import Options, read_options
from deploy.local.virtualenvs import child_environment
from tests.vllm_suite.preparation import HERE, Suite, prepare
from tests.vllm_suite.results import (
    Difference,
    Outcomes,
    count_by_file,
    differing,
    read_differences,
    read_outcomes,
    reason_of,
)

UNIT = Path("tests/v1/kv_connector/unit")
FILES = (
    "test_bidirectional_kv_transfer.py",
    "test_nixl_heartbeat.py",
    "test_remote_decode_lifecycle.py",
    "test_remote_prefill_lifecycle.py",
    "test_kv_connector_lifecycle.py",
    "test_nixl_connector.py",
    "test_kv_load_failure_recovery.py",
    "test_invalid_blocks_correctness.py",
    "test_error_propagation.py",
    "test_cache_pollution_prevention.py",
    "test_multi_connector.py",
)
SIDE_CHANNEL_OFFSET = 90
LIMIT_SECONDS = 1800
PYTEST = ("-m", "pytest", "-q", "-c", os.devnull, "-p", "no:cacheprovider", "-W", "ignore", "--tb=short")


def run(suite: Suite, name: str, tests: Iterable[str], *extra: str) -> Outcomes:
    """One run in a process of its own, with its output in ``<name>.log``."""
    layout = suite.options.layout
    report = suite.folder / f"{name}.xml"
    report.unlink(missing_ok=True)
    environment = {
        **child_environment(),
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join(map(str, (suite.sources, suite.site, HERE / "stand_in", layout.root))),
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(suite.options.ports.nixl + SIDE_CHANNEL_OFFSET),
    }
    chosen = [str(suite.sources / UNIT / test) for test in tests]
    with (suite.folder / f"{name}.log").open("wb") as log:
        subprocess.run(
            [layout.engine_python, *PYTEST, "--rootdir", suite.sources, "--junitxml", report, *extra, *chosen],
            cwd=suite.work,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=LIMIT_SECONDS,
            check=False,
        )
    if not report.exists():
        raise SystemExit(f"pytest left no report of the {name} run; its output is in {suite.folder}/{name}.log")
    return read_outcomes(report)


def run_ours(suite: Suite, name: str, tests: Iterable[str]) -> Outcomes:
    return run(suite, name, tests, "-p", "suite_plugin")


def settle(suite: Suite, stock: Outcomes, ours: Outcomes, doubtful: Sequence[str]) -> None:
    """Runs these tests again, by themselves, and takes what they say now."""
    stock.update(run(suite, "stock-again", doubtful))
    ours.update(run_ours(suite, "ours-again", doubtful))


def table(stock: Outcomes, ours: Outcomes, console: Console) -> None:
    console.plain(f"{'file':40} {'stock: passed failed skipped':>30} {'ours: passed failed skipped':>30}")
    of_stock, of_ours = count_by_file(stock), count_by_file(ours)
    for file in FILES:
        cells = "".join(
            f"{of_file['passed']:>16} {of_file['failed']:>6} {of_file['skipped']:>6}"
            for of_file in (of_stock.get(file, Counter()), of_ours.get(file, Counter()))
        )
        console.plain(f"{file:40}{cells}")


def judge(stock: Outcomes, ours: Outcomes, known: list[Difference], console: Console) -> int:
    """Prints every difference with its reason; the number of those without one, and of reasons without one."""
    differences = differing(stock, ours)
    num_wrong = 0
    for test in sorted(differences):
        reason = reason_of(test, known)
        num_wrong += reason is None
        console.plain(f"\n{test}\n    stock {stock.get(test)}, ours {ours.get(test)}: {reason or 'NOT KNOWN'}")
    for listed in (test for difference in known for test in difference.tests):
        if not any(listed in (test, test.split("[", maxsplit=1)[0]) for test in differences):
            num_wrong += 1
            console.plain(f"\n{listed}\n    is listed as a difference and is none")
    return num_wrong


def main() -> int:
    environment = {**os.environ, "P": "1", "D": "1"}
    environment.setdefault("BACKHAUL_RUN_DIR", ".run-vllm-suite")
    environment.setdefault("BACKHAUL_PORT_OFFSET", "18000")
    options: Options = read_options(environment, Path(__file__).resolve().parents[2])
    console = Console(sys.stdout)
    suite = Suite(options)
    prepare(suite, console)
    known = read_differences(HERE / "known_differences.toml")
    console.say("running vLLM's tests with its own connector")
    stock = run(suite, "stock", FILES)
    console.say("running them with ours")
    ours = run_ours(suite, "ours", FILES)
    doubtful = sorted(test for test in differing(stock, ours) if reason_of(test, known) is None)
    if doubtful:
        console.say(f"{len(doubtful)} tests differ for no known reason; running them again by themselves")
        settle(suite, stock, ours, doubtful)
    table(stock, ours, console)
    num_wrong = judge(stock, ours, known, console)
    console.plain(f"\n{len(differing(stock, ours))} of {len(stock)} tests end otherwise with our connector")
    return 1 if num_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
