"""Chained, keyed block digests: equal digests mean equal KV, whatever process computed them.

Digest ``i`` covers every token up to the end of block ``i`` and, through the seed, all else that changes KV: model and
revision, KV dtype, cache salt, LoRA adapter; multimodal items are mixed into the blocks that they touch. Digests are
128-bit blake2b, keyed with the fleet's digest key, so a holder of digests cannot test guesses of a prompt offline.
"""

import hashlib
from array import array
from collections.abc import Callable, Sequence

DIGEST_BYTES = 16


class DigestChain:
    """Digests of the whole blocks of one growing token sequence. Not thread-safe; one per request."""

    def __init__(
        self,
        key: bytes,
        seed: bytes,
        block_size: int,
        extra_of_block: Callable[[int, int], bytes] | None = None,
    ) -> None:
        """``extra_of_block(start, end)``: bytes mixed into the block of tokens ``[start, end)``."""
        self._key = key
        self._block_size = block_size
        self._extra_of_block = extra_of_block
        self._seed = hashlib.blake2b(seed, key=key, digest_size=DIGEST_BYTES, person=b"bh-seed").digest()
        # Copied per block: taking in the key again would cost as much as a block's tokens.
        self._keyed = hashlib.blake2b(key=key, digest_size=DIGEST_BYTES)
        self.digests: list[bytes] = []

    def extend(self, token_ids: Sequence[int], num_tokens: int) -> None:
        """Digest the whole blocks of ``token_ids[:num_tokens]`` beyond those already digested."""
        size = self._block_size
        done, whole = len(self.digests), num_tokens // size
        if whole <= done:
            return
        raw = array("I", token_ids[done * size : whole * size]).tobytes()
        stride = 4 * size
        last = self.digests[-1] if self.digests else self._seed
        keyed, extra_of_block = self._keyed, self._extra_of_block
        for offset in range(0, len(raw), stride):
            digest = keyed.copy()
            digest.update(last + raw[offset : offset + stride])
            if extra_of_block is not None:
                start = done * size + offset // 4
                digest.update(extra_of_block(start, start + size))
            last = digest.digest()
            self.digests.append(last)

    def tail(self, token_ids: Sequence[int], num_tokens: int) -> bytes:
        """Digest of the first ``num_tokens`` tokens, partial last block included. Needs ``extend`` up to there."""
        whole = num_tokens // self._block_size
        before = self.digests[whole - 1] if whole else self._seed
        digest = hashlib.blake2b(before, key=self._key, digest_size=DIGEST_BYTES, person=b"bh-tail")
        start = whole * self._block_size
        digest.update(array("I", token_ids[start:num_tokens]).tobytes())
        if self._extra_of_block is not None:
            digest.update(self._extra_of_block(start, num_tokens))
        return digest.digest()


def num_common_blocks(mine: Sequence[bytes], packed: bytes) -> int:
    """Length of the common prefix of my digests and a peer's, concatenated.

    Chained digests agree up to one point and nowhere after it, so a binary search finds it.
    """
    low, high = 0, min(len(mine), len(packed) // DIGEST_BYTES)
    while low < high:
        middle = (low + high + 1) // 2
        if mine[middle - 1] == packed[(middle - 1) * DIGEST_BYTES : middle * DIGEST_BYTES]:
            low = middle
        else:
            high = middle - 1
    return low


def pack(digests: Sequence[bytes]) -> bytes:
    return b"".join(digests)
