"""The control plane and the trace collector of a benchmarked router: take everything, keep nothing."""

import argparse
import asyncio
from pathlib import Path

import msgspec
import uvloop
from aiohttp import web

from connector.protocol import EventBatch, EventsCommitted, FleetSnapshot
from tests.connector.router.fake_control_plane import FakeControlPlane


class Surroundings(FakeControlPlane):
    async def _commit(self, socket: web.WebSocketResponse, batch: EventBatch) -> None:
        self.batches.clear()
        await self._say(socket, EventsCommitted(boot=batch.boot, sequence=batch.events[-1].sequence))

    async def _take_spans(self, request: web.BaseRequest) -> web.Response:
        await request.read()
        return web.Response(body=b"", content_type="application/x-protobuf")


async def serve(port: int, snapshot: FleetSnapshot) -> None:
    control = Surroundings()
    control.port = port
    control.snapshot = snapshot
    await control.start()
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--snapshot", type=Path, required=True)
    arguments = parser.parse_args()
    uvloop.run(serve(arguments.port, msgspec.json.decode(arguments.snapshot.read_bytes(), type=FleetSnapshot)))


if __name__ == "__main__":
    main()
