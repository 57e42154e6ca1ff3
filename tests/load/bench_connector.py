"""``make bench-connector``: what our connector costs, on real engines and against stock ``NixlConnector`` in one run.

Both pairs run at the same time and take turns, the other one held still; ratios are of neighbouring rounds. Stock is
vLLM's own class with our two CPU options (see ``stock_connector``). Figures are medians. ``--quick`` takes about four
minutes; the exit code is 1 when a figure misses its target.
"""

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp

from connector.signing import FleetKey
from deploy.local import model
from deploy.local.console import Console
from deploy.local.engines import Engine, engine_command
from deploy.local.environment import Options, read_options
from deploy.local.virtualenvs import child_environment
from tests.load.engine_processes import cpu_share, held_still
from tests.load.idle_cost import DecodeLink, IdleCost
from tests.load.pair import prepare_run, running_engines, stock_config
from tests.load.traffic import Traffic, rate

STOCK_PORT_OFFSET = 400
CONCURRENCY = 8
PROMPT, REPLY = 300, 32
TTL_SECONDS = 10
"""Of both pairs under load, so that neither fills up with leases."""
STEPS = 128


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is measured of each kind."""

    rounds: int
    turns: int
    step_rounds: int
    cpu_seconds: float
    lease_counts: tuple[int, ...]
    delay_counts: tuple[int, ...]
    delay_rounds: int
    delay_requests: int


FULL = Plan(
    rounds=9,
    turns=96,
    step_rounds=15,
    cpu_seconds=20,
    lease_counts=(0, 1, 50, 500),
    delay_counts=(1, 50, 500),
    delay_rounds=4,
    delay_requests=15,
)
QUICK = Plan(
    rounds=3,
    turns=32,
    step_rounds=5,
    cpu_seconds=8,
    lease_counts=(1, 50, 500),
    delay_counts=(50,),
    delay_rounds=3,
    delay_requests=12,
)


class Report:
    """Rows of one table: what was measured against its target."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.num_over = 0
        self._rows: list[tuple[str, str, str, str]] = []

    def row(self, name: str, value: float, unit: str, *, most: float | None = None, least: float | None = None) -> None:
        is_over = (most is not None and value > most) or (least is not None and value < least)
        self.num_over += is_over
        target = f"<= {most:g} {unit}" if most is not None else f">= {least:g}" if least is not None else ""
        verdict = ("over" if is_over else "OK") if target else ""
        self._rows.append((name, target, f"{value:.4g} {unit}", verdict))
        self._console.say(f"{name}: {value:.4g} {unit} {verdict}")

    def print(self) -> None:
        self._console.plain(f"\n{'figure':58} {'target':>14} {'measured':>14}")
        for name, target, measured, verdict in self._rows:
            self._console.plain(f"{name:58} {target:>14} {measured:>14}  {verdict}")


@dataclass(frozen=True, kw_only=True)
class Sides:
    ours: Traffic
    stock: Traffic

    async def alternate(self, rounds: int, measure: Callable[[Traffic], Awaitable[float]]) -> tuple[float, list[float]]:
        """(median of ours / stock over neighbouring rounds, both medians); who goes first changes."""
        values: dict[bool, list[float]] = {True: [], False: []}
        for number in range(rounds):
            for is_ours in (True, False) if number % 2 else (False, True):
                active, still = (self.ours, self.stock) if is_ours else (self.stock, self.ours)
                with held_still([still.prefill, still.decode]):
                    values[is_ours].append(await measure(active))
        ratios = [ours / stock for ours, stock in zip(values[True], values[False], strict=True)]
        return statistics.median(ratios), [statistics.median(values[True]), statistics.median(values[False])]


async def throughput(sides: Sides, plan: Plan, report: Report) -> None:
    async def turns(side: Traffic) -> float:
        return await rate(lambda: side.turn(PROMPT, REPLY), concurrency=CONCURRENCY, count=plan.turns)

    async def plain(side: Traffic) -> float:
        return await rate(lambda: side.plain(PROMPT, REPLY), concurrency=CONCURRENCY, count=plan.turns)

    for name, measure in (("P->D turns", turns), ("plain requests at D", plain)):
        await sides.alternate(1, measure)
        ratio, (ours, stock) = await sides.alternate(plan.rounds, measure)
        report.row(f"{name}, concurrency {CONCURRENCY}: ours / stock", ratio, "", least=0.99)
        report.row("  ours, tokens/s", ours * REPLY, "")
        report.row("  stock, tokens/s", stock * REPLY, "")
        report.row("  ours, requests/s", ours, "")


async def step_time(sides: Sides, plan: Plan, report: Report) -> None:
    async def step_ms(side: Traffic) -> float:
        first = await side.plain(PROMPT, 1)
        return (await side.plain(PROMPT, STEPS + 1) - first) / STEPS * 1e3

    ratio, (ours, stock) = await sides.alternate(plan.step_rounds, step_ms)
    report.row("step time at D, one running request: stock / ours", 1 / ratio, "", least=0.99)
    report.row("  ours", ours, "ms")
    report.row("  stock", stock, "ms")


async def idle(sides: Sides, link: DecodeLink, plan: Plan, report: Report, seed: int) -> None:
    with held_still([sides.stock.prefill, sides.stock.decode]):
        cost = IdleCost(sides.ours, link, seed)
        for count in plan.lease_counts:
            share = await cost.cpu(count, plan.cpu_seconds)
            report.row(f"idle D with {count} leases, core + worker", share, "%", most=20 if count else None)
        for count in plan.delay_counts:
            delay = await cost.delay_ms(count, rounds=plan.delay_rounds, requests=plan.delay_requests)
            report.row(f"short request, {count} leases against none", delay, "ms", most=5)
        await cost.hold(0)
    with held_still([sides.ours.prefill, sides.ours.decode]):
        await sides.stock.turn(PROMPT, 1)
        await asyncio.sleep(1)
        share = await asyncio.to_thread(cpu_share, sides.stock.decode, min(TTL_SECONDS - 3, plan.cpu_seconds))
        report.row("idle D of the stock pair with 1 lease, core + worker", share, "%")


def in_process(options: Options, report: Report) -> None:
    """Digests, a step with nothing to do and a lease's memory, in the engines' environment."""
    finished = subprocess.run(
        [options.layout.engine_python, "-m", "tests.contract.step_cost"],
        cwd=options.layout.root,
        env=child_environment(),
        stdout=subprocess.PIPE,
        check=True,
    )
    for line in finished.stdout.decode().splitlines():
        if line.startswith("{"):
            figure = json.loads(line)
            report.row(figure["name"], figure["value"], figure["unit"], most=figure["limit"])


def stock_options(options: Options) -> Options:
    """A pair of its own beside ours, with the same model."""
    environment = {
        **os.environ,
        "P": "1",
        "D": "1",
        "BACKHAUL_RUN_DIR": str(options.layout.run / "stock"),
        "BACKHAUL_PORT_OFFSET": str(_offset() + STOCK_PORT_OFFSET),
    }
    return read_options(environment, options.layout.root)


def _offset() -> int:
    return int(os.environ.get("BACKHAUL_PORT_OFFSET", "18000"))


def start(options: Options, console: Console, stack: ExitStack, *, is_stock: bool) -> list[Engine]:
    options = replace(options, has_prefill_prefix_cache=False)
    prepare_run(options)
    model.prepare(options, console)

    def command(engine: Engine) -> list[str | Path]:
        parts = list(engine_command(options, engine))
        config: dict[str, Any] = stock_config(options, engine) if is_stock else json.loads(str(parts[-1]))
        config["kv_connector_extra_config"] |= {"decoder_kv_blocks_ttl": TTL_SECONDS}
        if not is_stock:
            config["kv_connector_extra_config"] |= {"backhaul_policy_wait_seconds": 0}
        return [*parts[:-1], json.dumps(config)]

    console.say(f"starting the {'stock' if is_stock else 'backhaul'} pair")
    return stack.enter_context(running_engines(options, command))


async def measure(options: Options, console: Console, plan: Plan, parts: set[str], seed: int) -> Report:
    report = Report(console)
    if "process" in parts:
        in_process(options, report)
    if not parts & {"load", "step", "idle"}:
        return report
    async with AsyncExitStack() as stack:
        engines = stack.enter_context(ExitStack())
        ours = start(options, console, engines, is_stock=False)
        stock = start(stock_options(options), console, engines, is_stock=True)
        # A pair that was held still has closed the connections of before when it goes on.
        connector = aiohttp.TCPConnector(force_close=True)
        http = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        key = FleetKey.load(options.layout.run / "fleet.key")
        sides = Sides(ours=Traffic(ours, key, http, seed), stock=Traffic(stock, None, http, seed))
        if "load" in parts:
            await throughput(sides, plan, report)
        if "step" in parts:
            await step_time(sides, plan, report)
        if "idle" in parts:
            link = await stack.enter_async_context(DecodeLink(options.layout.link_path(ours[1].name)))
            await idle(sides, link, plan, report, seed)
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    parser.add_argument("--parts", nargs="+", default=["process", "load", "step", "idle"])
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    environment = {**os.environ, "P": "1", "D": "1", "BACKHAUL_PORT_OFFSET": str(_offset())}
    environment.setdefault("BACKHAUL_RUN_DIR", ".run-bench-connector")
    # So that engines end with us, and none stays held still.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    options = read_options(environment, Path(__file__).resolve().parents[2])
    console = Console(sys.stdout)
    plan = QUICK if arguments.quick else FULL
    report = asyncio.run(measure(options, console, plan, set(arguments.parts), arguments.seed))
    report.print()
    return 1 if report.num_over else 0


if __name__ == "__main__":
    sys.exit(main())
