"""A bare pair with little KV memory, short handoff leases, prefix caches on both sides, and IPv6 everywhere.

What a fleet meets under load happens here in seconds. No agent: engines' links are read directly.
"""

import asyncio
import contextlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from connector.framing import FrameDecoder, encode_frame
from connector.protocol import (
    EngineEvent,
    EngineLoad,
    EngineToAgent,
    LeaseOffer,
    LegDecided,
    Ping,
    Pong,
    TransferRecorded,
)
from deploy.local import model
from deploy.local.console import Console
from deploy.local.engines import Engine, engine_command, engines_of, transfer_config
from deploy.local.environment import Options, read_options
from tests.e2e.stack import ROOT, Stack
from tests.load.pair import prepare_run, running_engines

PORT_OFFSET = 16500
NUM_BLOCKS = 61
"""One of them is vLLM's null block."""
MAX_LENGTH = 1024
LEASE_SECONDS = 3
MAX_RUNNING = 2
LINK_SECONDS = 30.0

POLICY = {"kv_lease_duration": LEASE_SECONDS, "kv_recompute_threshold": 1, "backhaul_policy_wait_seconds": 0}
ARGUMENTS = (
    *("--num-gpu-blocks-override", str(NUM_BLOCKS), "--max-model-len", str(MAX_LENGTH), "--host", "::"),
    *("--max-num-seqs", str(MAX_RUNNING)),
    # Prompts are admitted before all their blocks are there and computed in turns, so that they are preempted late.
    *("--no-scheduler-reserve-full-isl", "--long-prefill-token-threshold", "64"),
)


class TightPair(Stack):
    """What ``Legs`` needs of a stack: addresses and secrets."""

    def __init__(self, options: Options) -> None:
        super().__init__(options.layout.run, PORT_OFFSET)
        prefill, decode = engines_of(options)
        self.prefill_url, self.decode_url = (f"http://[::1]:{engine.port}" for engine in (prefill, decode))
        self.links = {engine.role: options.layout.link_path(engine.name) for engine in (prefill, decode)}


class Ear:
    """An engine's link, read as its agent would."""

    def __init__(self, link: Path) -> None:
        self._link = link
        self._decoder: FrameDecoder[Any] = FrameDecoder(EngineToAgent)
        self.offers: list[LeaseOffer] = []
        self.decided: list[LegDecided] = []
        self.transfers: list[TransferRecorded] = []
        self.loads: list[EngineLoad] = []
        self._news = asyncio.Condition()

    async def __aenter__(self) -> "Ear":
        reader, self._writer = await asyncio.open_unix_connection(str(self._link))
        self._task = asyncio.create_task(self._read(reader))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(1 << 16):
            for message in self._decoder.feed(data):
                await self._take(message)

    async def _take(self, message: Any) -> None:
        if isinstance(message, LeaseOffer):
            self.offers.append(message)
        elif isinstance(message, Pong):
            self.loads.append(message.load)
        elif isinstance(message, EngineEvent) and isinstance(message.event, LegDecided):
            self.decided.append(message.event)
        elif isinstance(message, EngineEvent) and isinstance(message.event, TransferRecorded):
            self.transfers.append(message.event)
        async with self._news:
            self._news.notify_all()

    async def lease_of_turn(self, turn_id: str) -> LeaseOffer:
        def found() -> LeaseOffer | None:
            return next((offer for offer in self.offers if offer.lease.turn_id == turn_id), None)

        async with asyncio.timeout(LINK_SECONDS), self._news:
            await self._news.wait_for(lambda: found() is not None)
        offer = found()
        assert offer is not None
        return offer

    async def load(self) -> EngineLoad:
        """The engine's gauges as of now."""
        count = len(self.loads)
        self._writer.write(encode_frame(Ping(nonce=count)))
        async with asyncio.timeout(LINK_SECONDS), self._news:
            await self._news.wait_for(lambda: len(self.loads) > count)
        return self.loads[-1]

    def num_pulls(self, turn_id: str) -> int:
        return sum(transfer.turn_id == turn_id for transfer in self.transfers)


@contextmanager
def tight_pair() -> Iterator[TightPair]:
    """``BACKHAUL_E2E_TIGHT_RUN_DIR`` names the run directory of such a pair that runs already."""
    given = os.environ.get("BACKHAUL_E2E_TIGHT_RUN_DIR")
    variables = {
        "P": "1",
        "D": "1",
        "BACKHAUL_RUN_DIR": given or ".run-tight",
        "BACKHAUL_PORT_OFFSET": str(PORT_OFFSET),
    }
    options = read_options({**os.environ, **variables}, ROOT)
    if given:
        yield TightPair(options)
        return
    with Path(os.devnull).open("w") as nowhere:
        prepare_run(options)
        model.prepare(options, Console(nowhere))

    def command(engine: Engine) -> list[str | Path]:
        given = list(engine_command(options, engine))[:-1]
        config = transfer_config(options.layout, engine)
        config["kv_connector_extra_config"] = {**config["kv_connector_extra_config"], **POLICY}  # type: ignore[dict-item]
        return [*(part for part in given if part != "--no-enable-prefix-caching"), json.dumps(config), *ARGUMENTS]

    with running_engines(options, command, {"VLLM_NIXL_SIDE_CHANNEL_HOST": "::1"}):
        yield TightPair(options)
