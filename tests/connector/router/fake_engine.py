"""A vLLM server as a router meets it: validates like vLLM 0.32, checks envelopes, grants leases through its feed."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from multidict import CIMultiDictProxy

from connector.protocol import (
    Decision,
    LeaseGranted,
    LeaseKind,
    LeaseOffer,
    LegEnvelope,
    LegReply,
    Role,
)
from connector.router.health.probes import PROMPT
from connector.signing import FleetKey
from tests.connector.router.fake_feed import FakeFeed, bracketed
from tests.connector.router.formats import MESSAGES, RESPONSES, stream, whole
from tests.connector.router.sse import reply_stream

ENGINE_KEY = "engine-key-test"
MODEL = "tiny"
TTL_SECONDS = 480.0

ASIDES: dict[str, dict[str, Any]] = {
    "/v1/messages/count_tokens": {"input_tokens": 7},
    "/tokenize": {"count": 2, "max_model_len": 64, "tokens": [1, 2], "token_strs": None},
    "/detokenize": {"prompt": "hi"},
}


@dataclass(frozen=True)
class Received:
    path: str
    headers: CIMultiDictProxy[str]
    raw: bytes
    body: dict[str, Any]
    envelope: LegEnvelope | None
    offer: str | None


Script = Callable[[web.BaseRequest, Received], Awaitable[web.StreamResponse | None]]
"""What to do instead of answering; ``None`` answers as usual after all."""


class FakeEngine:
    """Set ``script`` to misbehave, ``events`` to say something else, ``gate`` to hold each event back.

    ``words`` is what it says in the responses and messages APIs.
    """

    def __init__(self, name: str, role: Role, fleet_key: FleetKey, host: str = "127.0.0.1") -> None:
        self.name = name
        self.role = role
        self.host = host
        self.feed = FakeFeed(name, host)
        self.received: list[Received] = []
        self.num_aborted = 0
        self.num_model_lists = 0
        self.num_health_checks = 0
        self.num_tokens_probed = 0
        self.health_status = 200
        self.before_health: Callable[[], None] | None = None
        self.probe: Callable[[], Awaitable[web.StreamResponse]] | None = None
        self.models = [MODEL]
        self.script: Script | None = None
        self.events: list[bytes] = reply_stream(["Hello", " you"])
        self.words = ["Hello", " you"]
        self.gate: Callable[[], Awaitable[None]] | None = None
        self.grants_leases = True
        self.grant_delay = 0.0
        self.ttl = TTL_SECONDS
        self.decision = Decision.PULLED
        self.diverged_at_token: int | None = None
        self.num_prompt_tokens = 7
        self.port = 0
        self.tls: ssl.SSLContext | None = None
        self._fleet_key = fleet_key
        self._runner: web.ServerRunner | None = None
        self._granting: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http{'s' if self.tls else ''}://{bracketed(self.host)}:{self.port}"

    async def start(self) -> None:
        await self.start_serving()
        await self.feed.start()

    async def start_serving(self) -> None:
        server = web.Server(self._serve, handler_cancellation=True, access_log=None, request_factory=_big_request)
        self._runner = web.ServerRunner(server, shutdown_timeout=0.2)
        await self._runner.setup()
        await web.TCPSite(self._runner, self.host, self.port, ssl_context=self.tls).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        await self.stop_serving()
        await self.feed.stop()
        for task in self._granting:
            task.cancel()

    async def stop_serving(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.headers.get("Authorization") != f"Bearer {ENGINE_KEY}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        if request.rel_url.path == "/v1/models":
            self.num_model_lists += 1
            return web.json_response(
                {"object": "list", "data": [{"id": name, "object": "model"} for name in self.models]}
            )
        if request.rel_url.path == "/health":
            self.num_health_checks += 1
            if self.before_health:
                self.before_health()
            return web.Response(status=self.health_status)
        raw = await request.read()
        body = json.loads(raw)
        if "cache_salt" in body and body.get("prompt") == PROMPT and "kv_transfer_params" not in body:
            self.num_tokens_probed += 1
            return await self.probe() if self.probe else web.json_response({"choices": [{"text": "a"}]})
        received = self._receive(request, raw, body)
        self.received.append(received)
        try:
            scripted = await self.script(request, received) if self.script else None
            return scripted or await self._answer(request, received)
        except asyncio.CancelledError:
            self.num_aborted += 1
            raise

    def _receive(self, request: web.BaseRequest, raw: bytes, body: dict[str, Any]) -> Received:
        params = (body.get("kv_transfer_params") or {}).get("backhaul")
        envelope = self._fleet_key.verify("envelope", params["envelope"], LegEnvelope) if params else None
        offer = params["offer"] if params else None
        return Received(request.rel_url.path, request.headers, raw, body, envelope, offer)

    async def _answer(self, request: web.BaseRequest, received: Received) -> web.StreamResponse:
        if received.path in ASIDES:
            return web.json_response(ASIDES[received.path])
        error = refusal_of(received)
        if error:
            return error_response(400, error)
        if self.role is Role.PREFILL:
            return self._prefill(received)
        return await self._decode(request, received)

    def _prefill(self, received: Received) -> web.Response:
        body, envelope = received.body, received.envelope
        assert envelope is not None
        assert envelope.leg is Role.PREFILL
        assert body["kv_transfer_params"]["do_remote_decode"] is True
        decision = self.decision if received.offer else envelope.reason_without_offer or Decision.NO_PLACEMENT
        reply = LegReply(
            offer=f"p-offer-{envelope.turn_id}",
            decision=decision,
            num_pulled_tokens=64 if decision is Decision.PULLED else 0,
            lease_id=f"handoff-{envelope.turn_id}",
            diverged_at_token=self.diverged_at_token if received.offer else None,
        )
        fields = {name: getattr(reply, name) for name in LegReply.__struct_fields__}
        answer = self._whole_reply(received, ["H"]) or {
            "id": "chatcmpl-p",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": "H"}, "finish_reason": "length"}],
            "usage": {"prompt_tokens": self.num_prompt_tokens, "completion_tokens": 1},
        }
        return web.json_response({**answer, "kv_transfer_params": {"backhaul": fields}})

    def _whole_reply(self, received: Received, words: list[str]) -> dict[str, Any] | None:
        if received.path not in (RESPONSES, MESSAGES):
            return None
        return whole(received.path, received.body, words, self.num_prompt_tokens)

    async def _decode(self, request: web.BaseRequest, received: Received) -> web.StreamResponse:
        if received.envelope is not None:
            assert received.envelope.leg is Role.DECODE
        if received.body.get("stream"):
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
            await response.prepare(request)
            async for piece in self._paced(received):
                await response.write(piece)
            self._finish(received)
            await response.write_eof()
            return response
        choice = {"index": 0, "message": {"role": "assistant", "content": "Hello you"}, "finish_reason": "stop"}
        usage = {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": 2,
            "total_tokens": self.num_prompt_tokens + 2,
        }
        head = {"id": "chatcmpl-d", "object": "chat.completion", "created": 1, "model": MODEL}
        self._finish(received)
        answer = self._whole_reply(received, self.words)
        return web.json_response(answer or {**head, "choices": [choice], "usage": usage})

    async def _paced(self, received: Received) -> AsyncIterator[bytes]:
        is_other = received.path in (RESPONSES, MESSAGES)
        events = stream(received.path, received.body, self.words, self.num_prompt_tokens) if is_other else self.events
        for piece in events:
            if self.gate is not None:
                await self.gate()
            yield piece

    def _finish(self, received: Received) -> None:
        """A lease is granted when the turn ends, and its notice takes the way through the feed."""
        if received.envelope is None or not self.grants_leases:
            return
        task = asyncio.create_task(self._grant(received.envelope))
        self._granting.add(task)
        task.add_done_callback(self._granting.discard)

    async def _grant(self, envelope: LegEnvelope) -> None:
        if self.grant_delay:
            await asyncio.sleep(self.grant_delay)
        await self.feed.grant(lease_offer(envelope, self.ttl))


def lease_offer(envelope: LegEnvelope, ttl: float = TTL_SECONDS, kind: LeaseKind = LeaseKind.SESSION) -> LeaseOffer:
    lease = LeaseGranted(
        lease_id=f"lease-{envelope.turn_id}",
        kind=kind,
        session_id=envelope.session_id,
        turn_id=envelope.turn_id,
        tenant=envelope.tenant,
        num_tokens=64,
        num_blocks=2,
        num_bytes=8192,
        remaining_seconds=ttl,
    )
    return LeaseOffer(lease=lease, offer=f"d-offer-{envelope.turn_id}", chain=envelope.chain)


def refusal_of(received: Received) -> str:
    """The checks of vLLM's request models that a router can trip over."""
    body = received.body
    if body.get("stream_options") and not body.get("stream"):
        return "Stream options can only be defined when `stream=True`."
    for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
        if body.get(name) is not None and body[name] < 1:
            return f"{name} must be at least 1"
    limit = body.get("max_completion_tokens") or body.get("max_tokens")
    if limit is not None and (body.get("min_tokens") or 0) > limit:
        return "min_tokens must be less than or equal to max_tokens"
    if body.get("cache_salt") == "":
        return "cache_salt must not be empty"
    if body.get("prompt_logprobs") is not None and body.get("stream"):
        return "`prompt_logprobs` are not available when `stream=True`."
    if received.path in ("/v1/chat/completions", MESSAGES) and not isinstance(body.get("messages"), list):
        return "messages must be a list"
    if received.path == MESSAGES and body.get("max_tokens") is None:
        return "max_tokens: Field required"
    if body.get("background") and not body.get("store", True):
        return "background can only be used when `store` is true"
    return ""


def error_response(status: int, message: str, headers: dict[str, str] | None = None) -> web.Response:
    error = {"message": message, "type": "BadRequestError", "param": None, "code": status}
    return web.json_response({"error": error}, status=status, headers=headers)


def _big_request(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=64 * 1024 * 1024)
