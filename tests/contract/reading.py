"""One pull on a pair of engines, in either direction, that a test breaks off where it likes."""

from typing import Any

from tests.contract.fake_nixl import FakeHandle
from tests.contract.pair_bench import PROMPT, Pair, reply_of

NUM_TOKENS = 3
LONGER = [*PROMPT, *reply_of(PROMPT, NUM_TOKENS), 7, 8, 9]


class Reading:
    """``reader`` asks for what ``source`` holds. READs of the reader's ranks end when a test says so."""

    def __init__(self, pair: Pair, *, to_prefill: bool) -> None:
        self.pair = pair
        self.to_prefill = to_prefill
        self.reader, self.source = (pair.prefill, pair.decode) if to_prefill else (pair.decode, pair.prefill)
        self.tokens = LONGER if to_prefill else PROMPT
        self.offer = pair.turn("before", PROMPT) if to_prefill else pair.prefilled("now", PROMPT)
        pair.settle()
        self._num_transfers = len(self.reader.transfers())
        self.num_free = self.reader.num_free_blocks
        self.nixl = self.reader.nixls[0]
        self.worker = self.reader.workers[0]
        self._num_reads = [len(nixl.reads) for nixl in self.reader.nixls]
        self._num_fences = [len(nixl.fences) for nixl in self.reader.nixls]
        for nixl in self.reader.nixls:
            nixl.is_prompt = False
        self.request_id = "p-now" if to_prefill else "d-now"

    def start(self, num_tokens: int = NUM_TOKENS, **envelope: Any) -> None:
        if self.to_prefill:
            self.pair.start_prefill("now", self.tokens, self.offer, **envelope)
        else:
            self.pair.start_decode("now", self.tokens, self.offer, num_tokens, **envelope)

    def post(self, **envelope: Any) -> FakeHandle:
        """Until the READ is under way."""
        self.start(**envelope)
        self.reader.step()
        return self.read()

    def fence_posted(self) -> FakeHandle:
        """Until the data is there and the fence READ is under way."""
        self.nixl.finish(self.post())
        self.reader.step()
        return self.fence()

    def read(self, rank: int = 0) -> FakeHandle:
        (read,) = self.reader.nixls[rank].reads[self._num_reads[rank] :]
        return read

    def fence(self, rank: int = 0) -> FakeHandle:
        (fence,) = self.reader.nixls[rank].fences[self._num_fences[rank] :]
        return fence

    def num_posted(self) -> int:
        """READs of data since the start, on the first rank."""
        return len(self.nixl.reads) - self._num_reads[0]

    def finish(self) -> None:
        """The request ends, and its answer is the truth."""
        self.reader.run(self.request_id)
        answer = self.reader.answers[self.request_id]
        assert answer == reply_of(self.tokens, len(answer))

    def be_late(self, seconds: float = 5.1) -> None:
        self.pair.clock.now += seconds
        self.reader.step()

    def transfers(self) -> list[tuple[str, str]]:
        """Records of the pull since the start; there is at most one."""
        return self.reader.transfers()[self._num_transfers :]

    def ends_as(self, outcome: str, reason: str) -> None:
        """The turn is exact, the pull is recorded once, and once every lease is over nothing is left anywhere."""
        self.finish()
        assert self.transfers() == [(outcome, reason)]
        self.leaves_nothing()

    def leaves_nothing(self) -> None:
        for nixl in self.reader.nixls:
            nixl.faults.clear()
            nixl.is_prompt = True
        self.again()
        self.pair.expire_all()
        assert self.pair.leftovers() == []

    def again(self) -> None:
        """The same prompt without an offer, which uses whatever the reader has cached of it: nothing partly written."""
        self.reader.add("again", self.tokens, None, NUM_TOKENS)
        self.reader.run("again")
        assert self.reader.answers["again"] == reply_of(self.tokens, NUM_TOKENS)
