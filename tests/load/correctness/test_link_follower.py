"""A run that is told to end, or whose engine dies, waits for no answer of a closed link."""

import asyncio
from pathlib import Path

import pytest

from connector.framing import encode_frame
from connector.protocol import EngineHello, PolicyApplied, PolicyValues
from tests.connector.agent.samples import engine_info
from tests.load.correctness.link_follower import LinkFollower


async def test_waits_end_with_the_link(tmp_path: Path) -> None:
    is_over = asyncio.Event()

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        applied = PolicyApplied(revision=0, values=PolicyValues())
        writer.write(encode_frame(EngineHello(protocol=2, engine=engine_info(), policy=applied, num_leases=0)))
        await is_over.wait()
        writer.close()

    async with await asyncio.start_unix_server(serve, tmp_path / "link"):
        link = LinkFollower()
        await link.connect(tmp_path / "link")
        waiting = asyncio.create_task(link.release("lease-1"))
        await asyncio.sleep(0)
        is_over.set()
        with pytest.raises(ConnectionError, match="link is closed"):
            await waiting
        with pytest.raises(ConnectionError, match="link is closed"):
            await link.ping()
        await link.close()
