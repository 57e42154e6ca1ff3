"""``make bench-correctness``: random histories and raced releases on real engines; every answer equals a recompute's.

Exits with 1 when any leg is wrong, and prints the smallest history that shows it, which ``--replay`` plays again.
"""

import argparse
import asyncio
import os
import signal
import sys
from pathlib import Path

import msgspec

from deploy.local.console import Console
from deploy.local.environment import Options, read_options
from tests.load.correctness.engines import running_trio
from tests.load.correctness.fleet import Fleet
from tests.load.correctness.histories import History
from tests.load.correctness.mutations import MUTATION_NAMES
from tests.load.correctness.run import CorrectnessRun
from tests.load.correctness.tally import Tally

ROOT = Path(__file__).resolve().parents[3]


def main() -> int:
    arguments = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    environment = dict(os.environ)
    environment.setdefault("BACKHAUL_RUN_DIR", ".run-correctness")
    environment.setdefault("BACKHAUL_PORT_OFFSET", "13000")
    options = read_options(environment, ROOT)
    console = Console(sys.stdout)
    with running_trio(options, console, mutation=arguments.mutation or "") as trio:
        tally = asyncio.run(play(Fleet(trio, options.layout), console, arguments))
    return conclude(options, console, arguments, tally)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--histories", type=int, default=2000)
    parser.add_argument("--releases", type=int, default=1000, help="of leases, raced against reads")
    parser.add_argument("--replay", type=Path, help="a history as JSON, played instead")
    parser.add_argument("--mutation", choices=MUTATION_NAMES, help="break the connector; the run must fail")
    return parser.parse_args()


async def play(fleet: Fleet, console: Console, arguments: argparse.Namespace) -> Tally:
    tally = Tally()
    async with fleet:
        run = CorrectnessRun(fleet, console, tally)
        await run.warm_up()
        if arguments.replay:
            await run.replay(msgspec.json.decode(arguments.replay.read_bytes(), type=History))
            return tally
        await run.histories(arguments.seed, arguments.histories)
        await run.races(arguments.seed, arguments.releases)
        tally.lease_ends = fleet.decode_link.num_ended
        for line in tally.lines():
            console.plain(line)
        if tally.failures:
            console.say("minimising the first failed history …")
            smallest = await run.minimise_first()
            if smallest is not None:
                console.plain(f"smallest history that fails:\n{msgspec.json.encode(smallest).decode()}")
    return tally


def conclude(options: Options, console: Console, arguments: argparse.Namespace, tally: Tally) -> int:
    summary = {"seed": arguments.seed, "mutation": arguments.mutation, **tally.summary()}
    path = options.layout.run / "correctness-summary.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(summary)))
    verdict = f"{len(tally.failures)} failures" if tally.failures else "every leg was exact"
    console.say(f"seed {arguments.seed}: {verdict}; the summary is in {path}")
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
