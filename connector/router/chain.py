"""Conversation chains: what a prompt extends, without tokenizing it.

A chain is a list of keyed hashes, one per prefix of a prompt: hash ``i`` covers tenant, API, model, tools and the first
``i`` messages (or input items), or the first ``i`` chunks of text or token ids (completions). Two prompts share a
prefix exactly as far as their chains do, and hashes of two tenants never meet. Chains are hints: engines verify token
ids before any reuse.

An assistant's reply isn't in the chain of the turn that made it, so the next turn of a conversation is recognised by
its chain beginning with the whole chain of the turn before.
"""

import hashlib
import re
from array import array
from collections.abc import Iterator, Sequence

import msgspec
import orjson

HASH_BYTES = 12
"""96 bits: 24 hexadecimal characters a hash."""

MAX_CHAIN = 255
"""Hashes that an envelope carries beside its turn marker (256 entries in all)."""

PACKED_BYTES = 8
"""Of a hash that is only compared with others, in this process: 64 bits of a keyed hash, which no client can aim at."""

KEPT_FIRST = 16
KEPT_LAST = 128

MIN_CHUNK_BYTES = 256
CHUNK_GROWTH = 64
"""Chunk ``n`` of a text is as long as 1/64 of what precedes it, at least 256 bytes: about 330 chunks for 1 MiB."""

_TURN_MARK = "#"

_is_hash = re.compile(rf"[0-9a-f]{{{2 * HASH_BYTES}}}").fullmatch


class ChainHasher:
    """Hashes prompts with the fleet's session key. Thread-safe; holds no prompt."""

    def __init__(self, session_key: bytes) -> None:
        self._chains, self._parts = (
            hashlib.blake2b(key=session_key, digest_size=HASH_BYTES, person=person)
            for person in (b"bh-chain", b"bh-part")
        )

    def parts(self, messages: Sequence[object]) -> list[bytes]:
        """One hash per message, each for itself: equal wherever the message stands."""
        return [_digest(self._parts, _canonical(message)) for message in messages]

    def messages(self, kind: str, tenant: str, model: str, root: object, parts: Sequence[bytes]) -> list[str]:
        """One hash per message, oldest first; ``parts`` are the messages' own hashes, ``kind`` names the API."""
        return self._extend(self._root(kind, tenant, model, root), iter(parts))

    def text(self, tenant: str, model: str, prompt: str | Sequence[int]) -> list[str]:
        """One hash per whole chunk, oldest first; an unfinished last chunk has none unless it is the only one.

        Raises ``OverflowError`` or ``TypeError`` when a token id isn't an integer of 0 to 2^64-1.
        """
        data = prompt.encode(errors="surrogatepass") if isinstance(prompt, str) else array("Q", prompt).tobytes()
        state = self._root("text" if isinstance(prompt, str) else "tokens", tenant, model, None)
        return self._extend(state, _chunks(data))

    def _root(self, kind: str, tenant: str, model: str, root: object) -> bytes:
        head = msgspec.msgpack.encode((kind, tenant, model)) + (_canonical(root) if root else b"")
        return self._hash(head)

    def _extend(self, state: bytes, parts: Iterator[bytes]) -> list[str]:
        chain = []
        for part in parts:
            state = self._hash(state + part)
            chain.append(state.hex())
        return chain

    def _hash(self, data: bytes) -> bytes:
        return _digest(self._chains, data)


def _digest(keyed: "hashlib.blake2b", data: bytes) -> bytes:
    """Copying a keyed state costs half of taking up the key anew."""
    state = keyed.copy()
    state.update(data)
    return state.digest()


def _canonical(value: object) -> bytes:
    """Equal for equal JSON values, whatever their key order, spacing and null members."""
    return orjson.dumps(_without_nulls(value), option=orjson.OPT_SORT_KEYS)


def _without_nulls(value: object) -> object:
    if isinstance(value, dict) and None in value.values():
        return {name: member for name, member in value.items() if member is not None}
    return value


def num_bytes_of_chunks(count: int) -> int:
    """How much of a text its first ``count`` whole chunks are."""
    start = 0
    for _ in range(count):
        start += _chunk_size(start)
    return start


def _chunk_size(start: int) -> int:
    return max(MIN_CHUNK_BYTES, start // CHUNK_GROWTH)


def _chunks(data: bytes) -> Iterator[bytes]:
    start = 0
    while start < len(data):
        size = _chunk_size(start)
        if start and start + size > len(data):
            return
        yield data[start : start + size]
        start += size


def thin(chain: Sequence[str]) -> tuple[str, ...]:
    """At most ``MAX_CHAIN`` of the hashes, in order: the first 16, the last 128 and evenly spread ones between.

    A lookup tries every prefix of the new prompt, so a thinned chain still finds the whole old prompt (its last hash is
    always kept); only an edit deep in a conversation of more than 255 messages is found at a somewhat earlier message.
    """
    if len(chain) <= MAX_CHAIN:
        return tuple(chain)
    num_between = MAX_CHAIN - KEPT_FIRST - KEPT_LAST
    between = len(chain) - KEPT_FIRST - KEPT_LAST
    picked = (chain[KEPT_FIRST + i * between // num_between] for i in range(num_between))
    return (*chain[:KEPT_FIRST], *picked, *chain[-KEPT_LAST:])


def pack_chain(chain: Sequence[str]) -> bytes:
    """The hashes as they are kept, ``PACKED_BYTES`` each. What another version sends may be no hexadecimal hash."""
    if all(map(_is_hash, chain)):
        return bytes.fromhex("".join([text[: 2 * PACKED_BYTES] for text in chain]))
    return b"".join(hashlib.blake2b(text.encode(), digest_size=PACKED_BYTES).digest() for text in chain)


def mark_turn(index: int, chain: tuple[str, ...]) -> tuple[str, ...]:
    """The chain as it travels: a leading ``#<turn index>`` lets a restarted router go on counting."""
    return (f"{_TURN_MARK}{index}", *chain)


def split_mark(chain: tuple[str, ...]) -> tuple[int, tuple[str, ...]]:
    """Turn index and hashes of a chain that came back in a lease; index 0 when another version sent none."""
    if chain and chain[0].startswith(_TURN_MARK) and chain[0][1:].isdecimal():
        return int(chain[0][1:]), chain[1:]
    return 0, chain
