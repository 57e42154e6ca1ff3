"""What leases cost an engine that has nothing else to do: its CPU time, and the delay of the next request."""

import asyncio
import statistics
from pathlib import Path
from random import Random
from typing import Any

from connector.framing import FrameDecoder, encode_frame
from connector.protocol import EngineToAgent, Ping, PolicyValues, Pong, SetPolicy
from tests.load.engine_processes import cpu_share
from tests.load.traffic import Traffic

DEADLINE_SECONDS = 60.0
LEASE_TOKENS = 40
SHORT_PROMPT = 16
SETTLE_SECONDS = 1.5
THINK_SECONDS = (0.02, 0.12)
"""Between short requests, so that they find the engine at every moment of its wait."""


class DecodeLink:
    """The agent's end of D's link: sets its policy, and asks how many leases it holds."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._frames: FrameDecoder[Any] = FrameDecoder(EngineToAgent)
        self._revision = 0
        self._pongs: asyncio.Queue[Pong] = asyncio.Queue()
        self._reading: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter

    async def __aenter__(self) -> "DecodeLink":
        reader, self._writer = await asyncio.open_unix_connection(str(self._path))
        self._reading = asyncio.create_task(self._read(reader))
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._reading is not None:
            self._reading.cancel()
        self._writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(1 << 20):
            for message in self._frames.feed(data):
                if isinstance(message, Pong):
                    self._pongs.put_nowait(message)

    def set_ttl(self, seconds: int) -> None:
        self._revision += 1
        values = PolicyValues(decoder_kv_blocks_ttl=seconds, pinned_kv_limit=0.9)
        self._writer.write(encode_frame(SetPolicy(revision=self._revision, values=values)))

    async def wait_for_leases(self, count: int) -> None:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while True:
                self._writer.write(encode_frame(Ping(nonce=1)))
                if (await self._pongs.get()).load.num_leases == count:
                    return
                await asyncio.sleep(0.05)


class IdleCost:
    def __init__(self, traffic: Traffic, link: DecodeLink, seed: int) -> None:
        self._traffic = traffic
        self._link = link
        self._source = Random(seed)

    async def hold(self, count: int) -> None:
        """Exactly that many leases, granted one after the other by short turns; those before are released."""
        self._link.set_ttl(0)
        await self._link.wait_for_leases(0)
        self._link.set_ttl(480)
        for _ in range(count):
            await self._traffic.leave_lease(LEASE_TOKENS)
        await self._link.wait_for_leases(count)

    async def cpu(self, count: int, seconds: float) -> float:
        """Percent of a core, of core and workers together, while that many leases are held."""
        await self.hold(count)
        await asyncio.sleep(SETTLE_SECONDS)
        return await asyncio.to_thread(cpu_share, self._traffic.decode, seconds)

    async def delay_ms(self, count: int, *, rounds: int, requests: int) -> float:
        """By how much the median of short requests is longer while that many leases are held."""
        without: list[float] = []
        with_leases: list[float] = []
        for _ in range(rounds):
            for num_leases, seconds in ((0, without), (count, with_leases)):
                await self.hold(num_leases)
                for _ in range(requests):
                    await asyncio.sleep(self._source.uniform(*THINK_SECONDS))
                    seconds.append(await self._traffic.plain(SHORT_PROMPT, 1))
        return (statistics.median(with_leases) - statistics.median(without)) * 1e3
