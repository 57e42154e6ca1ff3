"""An engine that computes nothing: answers both legs at once, or streams event by event, and speaks its agent's feed.

``python -m tests.load.bench_router.stub_engine --port 9100 --role prefill --feed-port 9110``. For vLLM's own routers it
answers with NIXL's params, for Backhaul's with an offer of the size that a prompt of 2,000 tokens has.
"""

import argparse
import asyncio
import base64
from typing import cast

import httptools
import msgspec
import orjson
import uvloop

from connector.protocol import Decision, LeaseGranted, LeaseKind, LeaseOffer, LeaseState, LegEnvelope, LegReply
from tests.connector.router.fake_feed import FakeFeed

MODEL = "tiny"
NUM_PROMPT_TOKENS = 2_000
OFFER = "k1." + base64.urlsafe_b64encode(bytes(range(256)) * 8).decode() + "." + "0" * 64
NIXL_PARAMS = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [list(range(NUM_PROMPT_TOKENS // 16))],
    "remote_engine_id": "stub",
    "remote_request_id": "chatcmpl-stub",
    "remote_host": "127.0.0.1",
    "remote_port": 5600,
    "tp_size": 1,
}
MODELS = orjson.dumps({"object": "list", "data": [{"id": MODEL, "object": "model", "created": 1, "owned_by": "stub"}]})
NOT_RENDERED = b'{"error":{"message":"Scale-out endpoints are disabled.","code":403}}'

_decode_envelope = msgspec.msgpack.Decoder(LegEnvelope).decode


def usage(num_output: int) -> dict[str, int]:
    total = NUM_PROMPT_TOKENS + num_output
    return {"prompt_tokens": NUM_PROMPT_TOKENS, "completion_tokens": num_output, "total_tokens": total}


def events(num_tokens: int) -> list[bytes]:
    """The reply's chunks as vLLM sends them, usage and end included."""
    base = {"id": "chatcmpl-stub", "object": "chat.completion.chunk", "created": 1, "model": MODEL}
    found = []
    for number in range(num_tokens):
        finish = "stop" if number == num_tokens - 1 else None
        choice = {"index": 0, "delta": {"content": "word "}, "logprobs": None, "finish_reason": finish}
        found.append(orjson.dumps({**base, "choices": [choice]}))
    found += (orjson.dumps({**base, "choices": [], "usage": usage(num_tokens)}), b"[DONE]")
    return [b"%x\r\ndata: %b\n\n\r\n" % (len(data) + 8, data) for data in found]


class Stub:
    """What all connections of one engine share."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.is_prefill = arguments.role == "prefill"
        self.feed = FakeFeed(arguments.name)
        self.feed.port = arguments.feed_port
        self.pace_seconds = arguments.pace_ms / 1e3
        self.events = events(arguments.tokens)
        head = (
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        self.head = head
        self.whole = head + b"".join(self.events) + b"0\r\n\r\n"
        self._phases: list[list[Stream]] = [[], []]
        self._leases: dict[str, str] = {}

    def grant(self, token: str) -> None:
        """A finished turn's lease, and the end of the one before it, as an engine and its agent tell them."""
        payload = token.split(".")[1]
        envelope = _decode_envelope(base64.urlsafe_b64decode(payload))
        asyncio.get_running_loop().create_task(self._tell(envelope))

    async def _tell(self, envelope: LegEnvelope) -> None:
        lease_id = f"lease-{envelope.turn_id}"
        before = self._leases.get(envelope.session_id)
        self._leases[envelope.session_id] = lease_id
        lease = LeaseGranted(
            lease_id=lease_id,
            kind=LeaseKind.SESSION,
            session_id=envelope.session_id,
            turn_id=envelope.turn_id,
            tenant=envelope.tenant,
            num_tokens=NUM_PROMPT_TOKENS,
            num_blocks=NUM_PROMPT_TOKENS // 16,
            num_bytes=1 << 20,
            remaining_seconds=480.0,
        )
        await self.feed.grant(LeaseOffer(lease=lease, offer=OFFER, chain=envelope.chain))
        if before is not None:
            await self.feed.end(before, LeaseState.SUPERSEDED)

    def keep(self, stream: "Stream") -> None:
        min(self._phases, key=len).append(stream)

    def tick(self) -> None:
        """One event for every other open stream, twice in the pace: real streams don't march in step."""
        asyncio.get_running_loop().call_later(self.pace_seconds / len(self._phases), self.tick)
        streams = self._phases.pop(0)
        self._phases.append([stream for stream in streams if stream.go_on()])


class Stream:
    def __init__(self, stub: Stub, transport: asyncio.Transport, token: str) -> None:
        self._stub, self._transport, self._token = stub, transport, token
        self._next = 0

    def go_on(self) -> bool:
        """Sends the next event; false when there is none left, or nobody to read it."""
        if self._transport.is_closing():
            return False
        piece = self._stub.events[self._next]
        self._next += 1
        is_last = self._next == len(self._stub.events)
        self._transport.write(piece + b"0\r\n\r\n" if is_last else piece)
        if is_last and self._token:
            self._stub.grant(self._token)
        return not is_last


class Served(asyncio.Protocol):
    """One connection of a router, or of the load itself."""

    def __init__(self, stub: Stub) -> None:
        self._stub = stub
        self._parser = httptools.HttpRequestParser(self)
        self._body: list[bytes] = []
        self._url = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._body, self._url = [], b""

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_body(self, piece: bytes) -> None:
        self._body.append(piece)

    def on_message_complete(self) -> None:
        if not self._body:
            self._send(200, MODELS if self._url.startswith(b"/v1/models") else b"{}")
        elif self._url.endswith(b"/render"):
            self._send(403, NOT_RENDERED)
        else:
            self._answer(orjson.loads(b"".join(self._body)))

    def _answer(self, request: dict[str, object]) -> None:
        params = request.get("kv_transfer_params")
        ours = params.get("backhaul") if isinstance(params, dict) else None
        token = str(ours["envelope"]) if ours else ""
        if self._stub.is_prefill or not request.get("stream"):
            self._send(200, self._whole_reply(token))
        elif self._stub.pace_seconds:
            self._transport.write(self._stub.head)
            stream = Stream(self._stub, self._transport, token)
            if stream.go_on():
                self._stub.keep(stream)
        else:
            self._transport.write(self._stub.whole)
            if token:
                self._stub.grant(token)

    def _whole_reply(self, token: str) -> bytes:
        params: dict[str, object] = NIXL_PARAMS
        if token:
            reply = LegReply(offer=OFFER, decision=Decision.PULLED, num_pulled_tokens=1_984, lease_id="handoff")
            params = {"backhaul": msgspec.to_builtins(reply)}
        choice = {"index": 0, "message": {"role": "assistant", "content": "word "}, "finish_reason": "length"}
        reply_fields = {"id": "chatcmpl-stub", "object": "chat.completion", "created": 1, "model": MODEL}
        return orjson.dumps({**reply_fields, "choices": [choice], "usage": usage(1), "kv_transfer_params": params})

    def _send(self, status: int, body: bytes) -> None:
        head = b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, len(body))
        self._transport.write(head + body)


async def serve(arguments: argparse.Namespace) -> None:
    stub = Stub(arguments)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Served(stub), "127.0.0.1", arguments.port, backlog=4096)
    await stub.feed.start()
    if stub.pace_seconds:
        stub.tick()
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", required=True)
    parser.add_argument("--role", choices=("prefill", "decode"), required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--feed-port", type=int, required=True)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--pace-ms", type=float, default=0)
    uvloop.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
