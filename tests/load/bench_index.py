"""How much memory the router's index takes per lease, and how fast it answers: ``make bench-index``.

Leases of ``--blocks`` blocks come as feeds tell them, with offers that a real fleet key signed; each is the last turn
of a conversation of 1 to ``--messages`` messages, and a share of the conversations branch. Memory is the growth of this
process's resident set; the book, the index, the offers and all that is kept of them are in it.
"""

import argparse
import gc
import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from connector.engine.kv_layout import KvLayout
from connector.engine.offers import FenceWord, KvOffer
from connector.identity import uuid7
from connector.protocol import FleetEngine, LeaseGranted, LeaseKind, LeaseOffer, Role
from connector.router.chain import HASH_BYTES, mark_turn, pack_chain, thin
from connector.router.fleet import EMPTY_SNAPSHOT, Fleet
from connector.router.index import TurnIndex
from connector.router.leases import LeaseBook
from connector.router.matching import Matcher, Prompt
from connector.signing import FleetKey

NUM_ENGINES = 32
NUM_TENANTS = 20
NUM_SYSTEM_PROMPTS = 50
BRANCHES_PERCENT = 20
BLOCK_SIZE = 16
LIMIT_BYTES = 1 << 30
NUM_LOOKED_UP = 500


def resident_bytes() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class Traffic:
    """Makes leases as engines would grant them, all random, and remembers none but a few prompts to look up."""

    def __init__(self, num_blocks: int, num_messages: int, seed: int = 1) -> None:
        self._random = random.Random(seed)
        self._key = FleetKey({"k1": self._random.randbytes(32)})
        self._num_blocks, self._num_messages = num_blocks, num_messages
        self._systems = [[self._hash() for _ in range(NUM_SYSTEM_PROMPTS)] for _ in range(NUM_TENANTS)]
        self._incarnations = [str(uuid7()) for _ in range(NUM_ENGINES)]
        self._fingerprint = self._random.randbytes(16)
        self._last: list[list[str]] = [[] for _ in range(NUM_TENANTS)]
        self.prompts: list[tuple[str, list[str]]] = []

    def leases(self, count: int) -> Iterator[tuple[int, LeaseOffer]]:
        """Engine's number and lease."""
        for number in range(count):
            tenant = self._random.randrange(NUM_TENANTS)
            chain = self._chain(tenant)
            lease = self._lease(number % NUM_ENGINES, f"tenant-{tenant}", chain)
            if number % (count // NUM_LOOKED_UP or 1) == 0:
                self.prompts.append((lease.lease.tenant, [*chain, self._hash(), self._hash()]))
            yield number % NUM_ENGINES, lease

    def _chain(self, tenant: int) -> list[str]:
        """Another conversation of the tenant's, or a branch of its last one; never the same prompt twice."""
        length, last = self._random.randint(1, self._num_messages), self._last[tenant]
        if last and self._random.randrange(100) < BRANCHES_PERCENT:
            chain = last[: max(1, len(last) // 2)]
        else:
            chain = [self._random.choice(self._systems[tenant])]
        chain.extend(self._hash() for _ in range(max(1, length - len(chain))))
        self._last[tenant] = chain
        return chain

    def _hash(self) -> str:
        return self._random.randbytes(HASH_BYTES).hex()

    def _lease(self, engine: int, tenant: str, chain: list[str]) -> LeaseOffer:
        lease_id, turn_id, session_id = str(uuid7()), str(uuid7()), self._random.randbytes(16).hex()
        granted = LeaseGranted(
            lease_id=lease_id,
            kind=LeaseKind.SESSION,
            session_id=session_id,
            turn_id=turn_id,
            tenant=tenant,
            num_tokens=self._num_blocks * BLOCK_SIZE,
            num_blocks=self._num_blocks,
            num_bytes=self._num_blocks << 20,
            remaining_seconds=480.0,
        )
        offer = self._key.sign("offer", self._offer(engine, granted))
        return LeaseOffer(lease=granted, offer=offer, chain=mark_turn(len(chain) // 2, thin(chain)))

    def _offer(self, engine: int, lease: LeaseGranted) -> KvOffer:
        return KvOffer(
            lease_id=lease.lease_id,
            engine=engine_name(engine),
            incarnation=self._incarnations[engine],
            role=Role.DECODE,
            tenant=lease.tenant,
            model_fingerprint=self._fingerprint,
            block_size=BLOCK_SIZE,
            num_tokens=lease.num_tokens,
            block_ids=(tuple(self._random.sample(range(100_000), self._num_blocks)),),
            digests=self._random.randbytes(16 * self._num_blocks),
            tail_digest=self._random.randbytes(16),
            host=f"10.0.0.{engine}",
            port=5600,
            request_id=f"chatcmpl-{lease.turn_id}-{self._random.randbytes(4).hex()}",
            tp_size=1,
            dcp_size=1,
            pp_size=1,
            expires_at_source=1e6 * self._random.random(),
            fence_words=(FenceWord(0, 0x7F0000000000 + 8 * self._random.randrange(1 << 16)),),
            fence_generation=self._random.getrandbits(63),
            digest_key_id="k1",
            layout=KvLayout(self._fingerprint.hex(), "LBHNC", 1 << 20),
            format=2,
        )


def _engine_facts(number: int) -> FleetEngine:
    return FleetEngine(
        name=engine_name(number),
        role=Role.DECODE,
        model="tiny",
        state="ready",
        draining=False,
        engine_url="http://127.0.0.1:1",
        feed_url="",
        incarnation=f"incarnation-{number}",
    )


def engine_name(number: int) -> str:
    return f"decode-{number}"


def fill(book: LeaseBook, traffic: Traffic, count: int) -> float:
    """CPU seconds that the book took; making the leases isn't counted."""
    seconds = 0.0
    for engine, lease in traffic.leases(count):
        started = time.process_time()
        book.grant(engine_name(engine), f"incarnation-{engine}", lease)
        seconds += time.process_time() - started
    return seconds


def lookups_per_second(index: TurnIndex, prompts: list[tuple[str, list[str]]], rounds: int = 20) -> float:
    """Whole matches: prompts of known conversations that went on, from their hashes as the hasher makes them."""
    fleet = Fleet()
    engines = tuple(_engine_facts(number) for number in range(NUM_ENGINES))
    fleet.apply(msgspec.structs.replace(EMPTY_SNAPSHOT, engines=engines))
    matcher = Matcher(index, fleet)
    started = time.process_time()
    for _ in range(rounds):
        for tenant, prompt in prompts:
            match = matcher.match(Prompt(tenant, "", pack_chain(prompt)))
            if match.source is None:
                raise RuntimeError("a lease that was granted isn't found")
    return rounds * len(prompts) / (time.process_time() - started)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--leases", type=int, default=1_000_000)
    parser.add_argument("--blocks", type=int, default=16)
    parser.add_argument("--messages", type=int, default=40)
    given = parser.parse_args()
    traffic = Traffic(given.blocks, given.messages)
    index = TurnIndex(2 * given.leases, 64 * LIMIT_BYTES)
    book = LeaseBook(index, lambda *_: None)
    before = resident_bytes()
    seconds = fill(book, traffic, given.leases)
    grown = resident_bytes() - before
    sys.stdout.write(
        f"{len(book)} leases of {given.blocks} blocks, 1 to {given.messages} messages: {grown / (1 << 20):.0f} MiB, "
        f"{grown / len(book):.0f} bytes a lease ({index.num_bytes / len(book):.0f} by the index's own count); process "
        f"{resident_bytes() / (1 << 20):.0f} MiB\n"
        f"{seconds / given.leases * 1e6:.1f} us a grant, {lookups_per_second(index, traffic.prompts):.0f} matches/s\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
