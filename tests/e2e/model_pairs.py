"""Real engines of a model whose cache is not one group of full attention; every turn is compared with a recompute.

Of each turn it is the top log-probabilities of P's and of D's first token. The weights are drawn wide: one token of
wrong KV moves them by a hundredth or more. No stack: bare prefill engines and one decode engine.
"""

import os
import random
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from connector.protocol import PolicyValues
from connector.signing import FleetKey
from deploy.local.commands import run_logged
from deploy.local.engines import Engine, engine_command
from deploy.local.environment import Options, read_options
from deploy.local.virtualenvs import child_environment
from tests.e2e.bare_pair import BarePair, EngineEar, TopLogprobs, Turn, difference
from tests.e2e.stack import ROOT
from tests.load.engine_processes import held_still
from tests.load.pair import prepare_run, running_engines

PORT_OFFSET = 15000
NUM_BLOCKS = 2000
"""Enough for the leases of all turns: none is evicted."""

MAX_LENGTH = 1024
NUM_REPLY = 5
FLOAT_NOISE = 2e-5
VOCABULARY = (300, 7900)
EVERY_TOKEN = PolicyValues(kv_recompute_threshold=1)
"""Of P, whose own prefix cache leaves it few tokens to pull."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """``num_spared``: tokens at a prompt's end that are left to D, and that P's answer therefore precedes."""

    name: str
    num_spared: int = 0
    has_prefix_cache: bool = True
    arguments: tuple[str, ...] = ()


class Pair:
    """One of P's engines and D, asked turn by turn; every answer is compared with a full recompute."""

    def __init__(self, kind: Kind, prefill: Engine, bare: BarePair, ear: EngineEar, seed: int) -> None:
        self.kind, self.ear = kind, ear
        self._prefill, self._bare = prefill, bare
        self._source = random.Random(seed)

    def tokens(self, count: int) -> list[int]:
        return [self._source.randrange(*VOCABULARY) for _ in range(count)]

    def turn(
        self,
        prompt: list[int],
        held: str | None = None,
        *,
        at_decode: list[int] | None = None,
        is_source_still: bool = False,
    ) -> Turn:
        """``is_source_still``: P serves nothing while D is asked, so that D's pull lasts until its deadline."""
        asked = prompt if at_decode is None else at_decode
        during_decode = held_still([self._prefill]) if is_source_still else None
        turn = self._bare.turn(prompt, held, num_reply=NUM_REPLY, decode_prompt=asked, during_decode=during_decode)
        assert_equal(turn.prefill, self._bare.recomputed(prompt[: len(prompt) - self.kind.num_spared]), "P")
        assert_equal(turn.decode, self._bare.recomputed(asked), "D")
        return turn

    def conversation(self, length: int) -> tuple[list[int], Turn]:
        """A first turn, and its history as D holds it: the last sampled token has no KV."""
        prompt = self.tokens(length)
        turn = self.turn(prompt)
        assert (turn.prefill_decision, turn.decode_decision) == ("recomputed_no_placement", "pulled")
        return (prompt + turn.tokens)[:-1], turn


def assert_equal(answered: TopLogprobs, recomputed: TopLogprobs, engine: str) -> None:
    assert difference(answered, recomputed) <= FLOAT_NOISE, f"{engine} answered from wrong KV"


@contextmanager
def running_pairs(kind: Kind) -> Iterator[list[Pair]]:
    """P without a prefix cache, then P with one if the kind can have one; each with the same D."""
    num_prefill = "2" if kind.has_prefix_cache else "1"
    environment = {**os.environ, "P": num_prefill, "D": "1", "BACKHAUL_RUN_DIR": str(ROOT / f".run-{kind.name}")}
    options = read_options({**environment, "BACKHAUL_PORT_OFFSET": str(PORT_OFFSET)}, ROOT)
    model = make_model(kind, options)

    def command(engine: Engine) -> list[str | Path]:
        limits = ("--max-model-len", str(MAX_LENGTH), "--num-gpu-blocks-override", str(NUM_BLOCKS))
        caches = "--no-enable-prefix-caching" if engine.name == "prefill-0" else "--enable-prefix-caching"
        return [*engine_command(options, engine), "--model", model, *limits, caches, *kind.arguments]

    with running_engines(options, command) as (*prefills, decode):
        key = FleetKey.load(options.layout.run / "fleet.key")
        for engine in prefills:
            with closing(EngineEar(options.layout.link_path(engine.name))) as ear:
                ear.set_policy(1, EVERY_TOKEN)
        with ExitStack() as opened:
            ear = opened.enter_context(closing(EngineEar(options.layout.link_path(decode.name))))
            pairs = [BarePair(engine.url, decode.url, key, ear) for engine in prefills]
            for pair in pairs:
                opened.enter_context(closing(pair))
            yield [
                Pair(kind, engine, pair, ear, seed)
                for seed, (engine, pair) in enumerate(zip(prefills, pairs, strict=True))
            ]


def make_model(kind: Kind, options: Options) -> Path:
    prepare_run(options)
    folder = options.layout.run / "other-model"
    shutil.rmtree(folder, ignore_errors=True)
    run_logged(
        [options.layout.engine_python, "-m", "tests.e2e.other_models", kind.name, folder],
        options.layout.log("setup-model"),
        what="making the model",
        directory=ROOT,
        environment={**child_environment(), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
    )
    return folder
