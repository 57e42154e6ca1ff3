"""``make bench-router``: Backhaul's router against vllm-router and the engine itself, one run, one machine.

Zero-compute engines, so that the routers are what is measured; all of Backhaul's parts are on. Runs alternate between
the ways to go, and medians over the runs are judged. ``ARGS=--quick`` takes three short runs.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.load.bench_router.processes import lift_file_limit
from tests.load.bench_router.scene import DIRECT, OURS, PEER, Scene

NUM_STREAMS = 2_000
STREAM_KIB = 60
SETTLE_SECONDS = 12.0
"""By then 24 events have gone through each stream, more than a router keeps of a reply's end."""

FLAT_SHARE = 0.05
"""How much of what the streams take may come on top while they go on."""

Runs = dict[str, list[dict[str, float]]]


@dataclass
class Report:
    """Lines of the table, and whether all figures that must be reached are."""

    rows: list[tuple[str, str, str, str]] = field(default_factory=list)
    is_reached: bool = True

    def judge(self, what: str, value: float, must: Callable[[float], bool], limits: str, unit: str = "x") -> None:
        is_met = must(value)
        self.is_reached &= is_met
        self.rows.append((what, f"{value:.2f}{unit}", limits, "PASS" if is_met else "over"))

    def show(self) -> None:
        widths = [max(len(row[column]) for row in self.rows) for column in range(3)]
        for row in self.rows:
            say("  ".join(text.ljust(width) for text, width in zip(row, (*widths, 4), strict=True)))


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def alternate(scene: Scene, num_runs: int, **options: float) -> Runs:
    runs: Runs = {DIRECT: [], OURS: [], PEER: []}
    for _ in range(num_runs):
        for way, done in runs.items():
            done.append(scene.load(way, **options))
    return runs


def middle(runs: Runs, way: str, name: str) -> float:
    return statistics.median(run[name] for run in runs[way])


def show(title: str, runs: Runs) -> None:
    say(f"\n{title} (medians of {len(runs[OURS])} runs)")
    for way in runs:
        figures = [middle(runs, way, name) for name in ("rps", "ttft_p50_ms", "ttft_p99_ms", "cpu_ms")]
        say("  {:14} {:8.0f} req/s   TTFT p50 {:7.2f} ms  p99 {:7.2f} ms   CPU {:5.2f} ms".format(way, *figures))


def measure_throughput(folder: Path, num_runs: int, count: int, report: Report) -> None:
    with Scene(folder / "throughput", pace_ms=0) as scene:
        runs = alternate(scene, num_runs, clients=16, count=count)
        show("8 KB prompts, 64 events, 16 clients", runs)
        ratio = middle(runs, OURS, "rps") / middle(runs, PEER, "rps")
        report.judge("req/s, of vllm-router's", ratio, lambda x: x >= 0.9, "at least 0.9, aim 1.2")
        runs = alternate(scene, num_runs, rate=50, count=count // 5)
        show("the same at 50 requests a second", runs)
        for name in ("p50", "p99"):
            direct = middle(runs, DIRECT, f"ttft_{name}_ms")
            added = [middle(runs, way, f"ttft_{name}_ms") - direct for way in (OURS, PEER)]
            say(f"  added TTFT {name}: {OURS} {added[0]:.2f} ms, {PEER} {added[1]:.2f} ms")
            what = f"added TTFT {name} at 50/s, of vllm-router's"
            report.judge(what, added[0] / added[1], lambda x: x <= 1.0, "at most 1.0, aim 0.7")


def measure_paced(folder: Path, num_runs: int, count: int, report: Report) -> None:
    with Scene(folder / "paced", pace_ms=2) as scene:
        runs = alternate(scene, num_runs, clients=48, count=count, spread_seconds=0.13)
    show("an event each 2 ms, 48 clients", runs)
    ratio = middle(runs, OURS, "rps") / middle(runs, PEER, "rps")
    report.judge("paced events: req/s, of vllm-router's", ratio, lambda x: x >= 0.95, "at least 0.95")
    ratio = middle(runs, OURS, "ttft_p50_ms") / middle(runs, PEER, "ttft_p50_ms")
    report.judge("paced events: TTFT, of vllm-router's", ratio, lambda x: x <= 1.1, "at most 1.1")


def measure_streams(folder: Path, seconds: float, report: Report) -> None:
    tokens = int((SETTLE_SECONDS + seconds) * 4)
    with Scene(folder / "streams", pace_ms=500, tokens=tokens) as scene:
        say(f"\n{NUM_STREAMS} open streams")
        for way in (OURS, PEER):
            subprocess.run(scene.load_command(way, count=100, hold_seconds=1), stdout=subprocess.DEVNULL, check=True)
            before = scene.routers[way].resident_bytes
            command = scene.load_command(way, count=NUM_STREAMS, hold_seconds=SETTLE_SECONDS + seconds + 5)
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as load:
                assert load.stdout is not None
                if json.loads(load.stdout.readline()) != {"open": NUM_STREAMS}:
                    raise SystemExit(f"the streams through {way} did not open")
                time.sleep(SETTLE_SECONDS)
                at_first = scene.routers[way].resident_bytes
                time.sleep(seconds)
                later = scene.routers[way].resident_bytes
            kib = (later - before) / NUM_STREAMS / 1024
            growth = (later - at_first) / max(1, at_first - before)
            say(f"  {way:14} {kib:5.1f} KiB each, {growth:+.1%} over {seconds:.0f} s")
            if way == OURS:
                report.judge("an open stream", kib, lambda x: x <= STREAM_KIB, f"at most {STREAM_KIB} KiB", " KiB")
                report.judge("growth while open", growth, lambda x: x <= FLAT_SHARE, "flat: at most 0.05", "")


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench-router")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="three short runs")
    parser.add_argument("--only", choices=("throughput", "paced", "streams"))
    arguments = parser.parse_args()
    num_runs, count = (3, 600) if arguments.quick else (arguments.runs, 2_500)
    lift_file_limit()
    report = Report()
    with tempfile.TemporaryDirectory(prefix="bench-router-") as name:
        folder = Path(name)
        if arguments.only in (None, "throughput"):
            measure_throughput(folder, num_runs, count, report)
        if arguments.only in (None, "paced"):
            measure_paced(folder, num_runs, count // 2, report)
        if arguments.only in (None, "streams"):
            measure_streams(folder, 10 if arguments.quick else 20, report)
    say("")
    report.show()
    return 0 if report.is_reached else 1


if __name__ == "__main__":
    sys.exit(main())
