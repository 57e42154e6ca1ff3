"""``make bench-prefill``: the prefill leg of turns ≥ 2, pulled against recomputed, ours against stock vLLM, one run.

For P without and with its prefix cache. A pull that recomputes nothing but the new message is the best case of reuse;
with P's cache warm the leg must be no worse than stock. Medians over the turns of several conversations; TTFT is the
prefill leg plus the decode leg of one token.
"""

import argparse
import os
import random
import statistics
import sys
from pathlib import Path

import httpx

from deploy.local.console import Console
from deploy.local.environment import Options, read_options
from tests.load.legs import TIMEOUT_SECONDS, StockLegs, VerifiedLegs, random_tokens
from tests.load.pair import running_pair

NEW_TOKENS = 40


class Figures:
    """Seconds of one kind of leg, by prompt length."""

    def __init__(self) -> None:
        self.leg: list[float] = []
        self.ttft: list[float] = []

    def add(self, leg: float, first_token: float) -> None:
        self.leg.append(leg)
        self.ttft.append(leg + first_token)

    @property
    def leg_ms(self) -> float:
        return statistics.median(self.leg) * 1e3

    @property
    def ttft_ms(self) -> float:
        return statistics.median(self.ttft) * 1e3


def conversation(
    legs: StockLegs, length: int, turns: int, source: random.Random, pulled: Figures, fresh: Figures
) -> None:
    """``pulled``: turns ≥ 2 with what D holds. ``fresh``: an unrelated prompt of the same length, all recomputed."""
    tokens, held = random_tokens(length, source), None
    for turn in range(turns):
        leg, first_token, reply, held = legs.turn(tokens, held)
        if turn:
            pulled.add(leg, first_token)
        leg, first_token, _, _ = legs.turn(random_tokens(len(tokens), source), None)
        fresh.add(leg, first_token)
        tokens = tokens + reply + random_tokens(NEW_TOKENS, source)


def measure(options: Options, console: Console, arguments: argparse.Namespace, *, is_stock: bool, cached: bool) -> None:
    name = f"{'stock' if is_stock else 'backhaul'}, P's prefix cache {'on' if cached else 'off'}"
    console.say(f"starting the pair: {name}")
    with running_pair(options, console, is_stock=is_stock, has_prefix_cache=cached) as (prefill, decode):
        run = options.layout.run
        legs = (
            StockLegs(prefill.url, decode.url)
            if is_stock
            else VerifiedLegs(prefill.url, decode.url, run, options.layout.link_path(decode.name), must_pull=not cached)
        )
        source = random.Random(arguments.seed)
        conversation(legs, 300, 3, source, Figures(), Figures())
        for length in arguments.lengths:
            pulled, fresh = Figures(), Figures()
            try:
                for _ in range(arguments.conversations):
                    conversation(legs, length, arguments.turns, source, pulled, fresh)
            except httpx.ReadTimeout:
                # Stock vLLM has no deadline for a pull: one that hangs holds its turn for ever.
                console.say(f"{name:35} {length:6} tokens  a turn got no answer within {TIMEOUT_SECONDS} s")
                return
            console.say(
                f"{name:35} {length:6} tokens  leg: recompute {fresh.leg_ms:7.1f} ms  reuse {pulled.leg_ms:6.1f} ms  "
                f"ratio {fresh.leg_ms / pulled.leg_ms:5.1f}   TTFT: {fresh.ttft_ms:7.1f} → {pulled.ttft_ms:6.1f} ms"
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=[2200, 4000, 8000], help="tokens of the first prompt")
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--conversations", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    environment = {**os.environ, "P": "1", "D": "1"}
    environment.setdefault("BACKHAUL_RUN_DIR", ".run-bench")
    environment.setdefault("BACKHAUL_PORT_OFFSET", "12000")
    options = read_options(environment, Path(__file__).resolve().parents[2])
    console = Console(sys.stdout)
    for cached in (False, True):
        for is_stock in (False, True):
            measure(options, console, arguments, is_stock=is_stock, cached=cached)
    return 0


if __name__ == "__main__":
    sys.exit(main())
