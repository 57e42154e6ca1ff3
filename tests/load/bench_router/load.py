"""The load: clients on bare sockets that check each reply and take as little of the machine as they can.

``python -m tests.load.bench_router.load --port 8080 --clients 16 --count 2000``; prints one JSON object.
"""

import argparse
import asyncio
import json
import time
from typing import cast

import uvloop

SHARED_TEXT = "You are a careful assistant. Use the tools that are there. " * 110
OWN_TEXT = "The customer writes about the order that has not come yet. "
NUM_SESSIONS = 200
WARM_UP = 50
OPEN_WAIT_SECONDS = 120


def request_bytes(number: int, key: str, num_bytes: int) -> bytes:
    """A turn of one of 200 conversations that share their system prompt, which is three quarters of it."""
    name = f"c{number % NUM_SESSIONS}"
    shared = (SHARED_TEXT * (num_bytes // len(SHARED_TEXT) + 1))[: num_bytes * 3 // 4]
    own = (f"{name}: " + OWN_TEXT * (num_bytes // len(OWN_TEXT) + 1))[: num_bytes // 4]
    messages = [{"role": "system", "content": shared}, {"role": "user", "content": own}]
    body = json.dumps(
        {"model": "tiny", "stream": True, "max_tokens": 64, "conversation_id": name, "messages": messages}
    ).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        f"Accept: */*\r\nUser-Agent: bench\r\nAuthorization: Bearer {key}\r\nX-Session-ID: {name}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Tally:
    def __init__(self, num_events: int) -> None:
        self.num_events = num_events
        self.ttft: list[float] = []
        self.latency: list[float] = []
        self.errors: list[str] = []


class Client(asyncio.Protocol):
    """One request at a time; ``exchange`` is a future that is done when the reply is whole."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._pieces: list[bytes] = []
        self._started = 0.0
        self._first = 0.0
        self._done: asyncio.Future[None] | None = None
        self.first_event: asyncio.Future[None] | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._done is not None and not self._done.done():
            self._tally.errors.append("the connection ended")
            self._done.set_result(None)

    def exchange(self, request: bytes, started: float) -> "asyncio.Future[None]":
        assert self._transport is not None
        loop = asyncio.get_running_loop()
        self._pieces, self._started, self._first = [], started, 0.0
        self._done, self.first_event = loop.create_future(), loop.create_future()
        self._transport.write(request)
        return self._done

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._pieces.append(data)
        if not self._first and b"data:" in data:
            self._first = time.perf_counter()
            if self.first_event is not None:
                self.first_event.set_result(None)
        if data.endswith(b"0\r\n\r\n") or (len(data) < 5 and b"".join(self._pieces[-3:]).endswith(b"0\r\n\r\n")):
            self._finish()
        elif not self._first and not b"".join(self._pieces).startswith(b"HTTP/1.1 200"):
            self._tally.errors.append(b"".join(self._pieces)[:200].decode(errors="replace"))
            self.close()

    def _finish(self) -> None:
        reply = b"".join(self._pieces)
        num_events = reply.count(b"data: ")
        if not reply.startswith(b"HTTP/1.1 200") or num_events != self._tally.num_events:
            self._tally.errors.append(f"{num_events} events: {reply[:100].decode(errors='replace')}")
        self._tally.ttft.append(self._first - self._started)
        self._tally.latency.append(time.perf_counter() - self._started)
        assert self._done is not None
        self._done.set_result(None)


class Load:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._requests = [request_bytes(n, arguments.key, arguments.kb * 1024) for n in range(NUM_SESSIONS)]
        self._idle: list[Client] = []

    async def closed(self, tally: Tally, num_clients: int, count: int) -> None:
        numbers = iter(range(count))

        async def work(place: int) -> None:
            client = await self._connect(tally)
            await asyncio.sleep(self._arguments.spread_seconds * place / num_clients)
            for number in numbers:
                await client.exchange(self._requests[number % NUM_SESSIONS], time.perf_counter())
            client.close()

        await asyncio.gather(*(work(place) for place in range(num_clients)))

    async def paced(self, tally: Tally, rate: float, count: int) -> None:
        """Requests at their times whatever became of those before; time to first token counts from then."""

        async def one(number: int, due: float) -> None:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            started = time.perf_counter()
            client = self._idle.pop() if self._idle else await self._connect(tally)
            await client.exchange(self._requests[number % NUM_SESSIONS], started)
            self._idle.append(client)

        start = time.perf_counter() + 0.1
        await asyncio.gather(*(one(number, start + number / rate) for number in range(count)))

    async def hold(self, tally: Tally, count: int, seconds: float) -> None:
        """Opens streams, says so when all have had their first event, and keeps reading them."""
        clients = [await self._connect(tally) for _ in range(count)]
        waits = []
        for number, client in enumerate(clients):
            client.exchange(self._requests[number % NUM_SESSIONS], time.perf_counter())
            assert client.first_event is not None
            waits.append(client.first_event)
            if number % 50 == 49:
                await asyncio.sleep(0.05)
        async with asyncio.timeout(OPEN_WAIT_SECONDS):
            await asyncio.gather(*waits)
        print(json.dumps({"open": count}), flush=True)  # noqa: T201
        await asyncio.sleep(seconds)
        for client in clients:
            client.close()

    async def _connect(self, tally: Tally) -> Client:
        loop = asyncio.get_running_loop()
        _, client = await loop.create_connection(lambda: Client(tally), "127.0.0.1", self._arguments.port)
        return client


async def run(arguments: argparse.Namespace) -> None:
    load, num_events = Load(arguments), arguments.tokens + 2
    if arguments.hold_seconds:
        await load.hold(Tally(num_events), arguments.count, arguments.hold_seconds)
        return
    await load.closed(Tally(num_events), arguments.clients, max(WARM_UP, arguments.clients))
    tally = Tally(num_events)
    started = time.perf_counter()
    if arguments.rate:
        await load.paced(tally, arguments.rate, arguments.count)
    else:
        await load.closed(tally, arguments.clients, arguments.count)
    seconds = time.perf_counter() - started
    print(json.dumps(summary(tally, seconds)))  # noqa: T201


def summary(tally: Tally, seconds: float) -> dict[str, object]:
    def at(values: list[float], share: float) -> float:
        return 1e3 * sorted(values)[int(len(values) * share)] if values else 0.0

    return {
        "rps": len(tally.latency) / seconds,
        "ttft_p50_ms": at(tally.ttft, 0.5),
        "ttft_p99_ms": at(tally.ttft, 0.99),
        "latency_p50_ms": at(tally.latency, 0.5),
        "num_errors": len(tally.errors),
        "error": tally.errors[0] if tally.errors else "",
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--key", default="none")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--count", type=int, default=2_000)
    parser.add_argument("--rate", type=float, default=0)
    parser.add_argument("--hold-seconds", type=float, default=0)
    parser.add_argument("--spread-seconds", type=float, default=0)
    parser.add_argument("--kb", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    uvloop.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
