"""Drives one turn on a bare pair: the prefill leg and the decode leg of one token, each timed."""

import random
import socket
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from connector.framing import FrameDecoder
from connector.protocol import EngineToAgent, LeaseOffer, LegEnvelope, Role
from connector.signing import FleetKey

TIMEOUT_SECONDS = 60
NO_REMOTE = {"remote_engine_id": None, "remote_block_ids": None, "remote_host": None, "remote_port": None}


def random_tokens(count: int, source: random.Random) -> list[int]:
    return [source.randrange(300, 7900) for _ in range(count)]


class StockLegs:
    """As vLLM's example proxy does it: params go from one engine's answer into the next request."""

    def __init__(self, prefill_url: str, decode_url: str) -> None:
        self._prefill_url, self._decode_url = prefill_url, decode_url
        self._http = httpx.Client(timeout=TIMEOUT_SECONDS)

    def turn(self, tokens: list[int], held: Any) -> tuple[float, float, list[int], Any]:
        """(seconds of the prefill leg, seconds of the decode leg, its one token, what D holds now).

        ``held``: what the last turn of the conversation returned, or ``None``.
        """
        started = time.perf_counter()
        params = self._prefill(tokens, held)
        middle = time.perf_counter()
        reply, held = self._decode(tokens, params)
        return middle - started, time.perf_counter() - middle, reply, held

    def _prefill(self, tokens: list[int], held: Any) -> Any:
        params = {**(held or NO_REMOTE), "do_remote_decode": True, "do_remote_prefill": False}
        return self._post(self._prefill_url, tokens, params)["kv_transfer_params"]

    def _decode(self, tokens: list[int], params: Any) -> tuple[list[int], Any]:
        body = self._post(self._decode_url, tokens, params)
        return body["choices"][0]["token_ids"], body["kv_transfer_params"]

    def _post(self, url: str, tokens: list[int], params: Any) -> Any:
        request = {
            "model": "tiny",
            "prompt": tokens,
            "max_tokens": 1,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
            "kv_transfer_params": params,
        }
        response = self._http.post(f"{url}/v1/completions", json=request)
        response.raise_for_status()
        return response.json()


class VerifiedLegs(StockLegs):
    """The same turns with our connector: envelopes are signed here, D's offers are read from its link."""

    def __init__(self, prefill_url: str, decode_url: str, run: Path, decode_link: Path, *, must_pull: bool) -> None:
        super().__init__(prefill_url, decode_url)
        self._key = FleetKey.load(run / "fleet.key")
        self._link = socket.socket(socket.AF_UNIX)
        self._link.settimeout(20)
        self._link.connect(str(decode_link))
        self._frames: FrameDecoder[Any] = FrameDecoder(EngineToAgent)
        self._turn_id = ""
        self._must_pull = must_pull

    def _prefill(self, tokens: list[int], held: Any) -> Any:
        self._turn_id = str(uuid.uuid4())
        params = {"do_remote_decode": True, "do_remote_prefill": False, "backhaul": self._signed(Role.PREFILL, held)}
        reply = self._post(self._prefill_url, tokens, params)["kv_transfer_params"]["backhaul"]
        if self._must_pull and held is not None and reply["decision"] != "pulled":
            raise SystemExit(f"a turn that should pull was {reply['decision']}")
        backhaul = self._signed(Role.DECODE, reply["offer"])
        return {"do_remote_decode": False, "do_remote_prefill": True, "backhaul": backhaul}

    def _decode(self, tokens: list[int], params: Any) -> tuple[list[int], Any]:
        body = self._post(self._decode_url, tokens, params)
        return body["choices"][0]["token_ids"], self._offer_of_turn()

    def _signed(self, leg: Role, offer: str | None) -> dict[str, Any]:
        envelope = LegEnvelope(
            leg=leg,
            tenant="bench",
            session_id="bench",
            turn_id=self._turn_id,
            expires_unix=time.time() + 600,
        )
        return {"envelope": self._key.sign("envelope", envelope), "offer": offer}

    def _offer_of_turn(self) -> str:
        return next(offer.offer for offer in self._offers() if offer.lease.turn_id == self._turn_id)

    def _offers(self) -> Iterator[LeaseOffer]:
        while True:
            for message in self._frames.feed(self._link.recv(1 << 20)):
                if isinstance(message, LeaseOffer):
                    yield message
