"""Which models each engine serves: asked of the engines themselves, so that LoRA adapters count too."""

import asyncio
import contextlib
import logging
import time

import msgspec

from connector.router.errors import no_engine, unknown_model
from connector.router.fleet import Engine, Fleet
from connector.router.live import Source
from connector.router.requests.members import choose_model
from connector.router.secretfiles import bearing
from connector.router.upstream import Upstream

REFRESH_SECONDS = 5.0
ASK_SECONDS = 2.0
MIN_AGE_SECONDS = 1.0
"""Unknown model names can't make the router ask the engines more often than this."""

log = logging.getLogger(__name__)


class _ModelList(msgspec.Struct, frozen=True):
    data: list[msgspec.Raw]


class _ModelId(msgspec.Struct, frozen=True):
    id: str


class _Union(msgspec.Struct, frozen=True):
    data: list[msgspec.Raw]
    object: str = "list"


class ServedModels:
    """Model cards by engine, refreshed every 5 s; an engine that doesn't answer keeps its last cards while it is up."""

    def __init__(self, fleet: Fleet, upstream: Upstream, engine_key: Source[str]) -> None:
        self._fleet = fleet
        self._upstream = upstream
        self._engine_key = engine_key
        self._cards: dict[str, dict[str, msgspec.Raw]] = {}
        self._refreshed_at = float("-inf")
        self._is_changed = asyncio.Event()
        self._refreshing: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Refreshes for ever; cancel to stop."""
        while True:
            self._is_changed.clear()
            await self._refresh_now()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REFRESH_SECONDS):
                    await self._is_changed.wait()

    def hurry(self) -> None:
        """The fleet changed: the engines are asked now."""
        self._is_changed.set()

    async def refresh(self) -> None:
        """Asks every engine that is up, unless that was done within the last second. Concurrent calls share one."""
        if time.monotonic() - self._refreshed_at >= MIN_AGE_SECONDS or self._is_changed.is_set():
            await self._refresh_now()

    async def resolve(self, named: str) -> str:
        """The model to serve, ``named`` or the only one. A name that nobody heard of is looked for once more at the
        engines (a new adapter) before it is a 404, as ``ApiError``."""
        model = choose_model(named, self._fleet.models_served())
        if model in self._fleet.models_known():
            return model
        await self.refresh()
        if model in self._fleet.models_known():
            return model
        if not any(self._fleet):
            raise no_engine("No engine is known to this router yet.")
        raise unknown_model(model)

    async def _refresh_now(self) -> None:
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._ask_all())
        await asyncio.shield(self._refreshing)

    async def close(self) -> None:
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)

    def union(self) -> bytes:
        """The body of ``GET /v1/models``: each model of an engine that takes turns, once."""
        union: dict[str, msgspec.Raw] = {}
        for engine in self._fleet:
            if engine.takes_turns:
                for name, card in self._cards.get(engine.name, {}).items():
                    union.setdefault(name, card)
        return msgspec.json.encode(_Union(list(union.values())))

    async def _ask_all(self) -> None:
        engines = [engine for engine in self._fleet if engine.is_up]
        await asyncio.gather(*(self._ask(engine) for engine in engines))
        names = {engine.name for engine in self._fleet}
        self._cards = {name: cards for name, cards in self._cards.items() if name in names}
        self._refreshed_at = time.monotonic()

    async def _ask(self, engine: Engine) -> None:
        body = await self._upstream.get(engine.url("/v1/models"), bearing(self._engine_key), ASK_SECONDS)
        if body is None:
            return
        try:
            cards = msgspec.json.decode(body, type=_ModelList).data
            named = {msgspec.json.decode(card, type=_ModelId).id: card for card in cards}
        except msgspec.MsgspecError as error:
            log.warning("event=model_list_unreadable engine=%s error=%s", engine.name, error)
            return
        self._cards[engine.name] = named
        engine.served_models = frozenset((*named, engine.facts.model))
