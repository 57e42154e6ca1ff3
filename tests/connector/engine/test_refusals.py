"""Offers that are validly signed and still not used: one decision and one distinct reason per case."""

from typing import Any

import msgspec
import pytest

from connector.engine.kv_layout import KvLayout
from connector.engine.offers import KvOffer
from connector.engine.peers import PeerBook
from connector.engine.refusals import Reader, Refusal, refusal
from connector.protocol import Decision, Peer, Role, SetPeers
from tests.connector.engine.builders import BLOCK_SIZE, FINGERPRINT, FLEET_KEY, an_offer

LAYOUT = KvLayout("hash-1", "LBHNC", 4096)


def a_reader(**changes: Any) -> Reader:
    reader = Reader(role=Role.PREFILL, fingerprint=FINGERPRINT, block_size=BLOCK_SIZE, layout=LAYOUT)
    return msgspec.structs.replace(reader, **changes)


def peers(*listed: Peer) -> PeerBook:
    book = PeerBook()
    book.set(SetPeers(peers=listed))
    return book


def refused(offer: KvOffer, reader: Reader | None = None, book: PeerBook | None = None) -> Refusal | None:
    return refusal(offer, reader or a_reader(), tenant="default", key=FLEET_KEY, peers=book or PeerBook())


def rejected(reason: str) -> Refusal:
    return Refusal(Decision.REJECTED, reason)


def unsupported(reason: str) -> Refusal:
    return Refusal(Decision.UNSUPPORTED, reason)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, None),
        ({"role": Role.PREFILL}, rejected("same_role")),
        ({"tenant": "other"}, rejected("other_tenant")),
        ({"fence_words": ()}, rejected("no_fence")),
        ({"digest_key_id": "k9"}, rejected("unknown_digest_key")),
        ({"digest_key_id": ""}, rejected("unknown_digest_key")),
        ({"format": 1, "digest_key_id": ""}, unsupported("other_format")),
        ({"format": 3}, unsupported("other_format")),
        ({"model_fingerprint": b"g" * 16}, unsupported("other_model")),
        ({"block_size": 8}, unsupported("other_block_size")),
        ({"layout": KvLayout("hash-2", "LBHNC", 4096)}, unsupported("other_build")),
        ({"layout": KvLayout("hash-1", "LBHNC", 2048)}, unsupported("other_block_bytes")),
        ({"layout": KvLayout("hash-1", "LBNHC", 4096)}, unsupported("other_memory_order")),
        ({"layout": KvLayout("hash-1")}, None),
        ({"tp_size": 0}, unsupported("other_parallelism")),
        ({"tenant": "other", "model_fingerprint": b"g" * 16}, rejected("other_tenant")),
    ],
)
def test_each_case_has_its_reason(changes: dict[str, Any], told: Refusal | None) -> None:
    assert refused(an_offer(**{"layout": LAYOUT, **changes})) == told


@pytest.mark.parametrize(
    ("theirs", "mine", "told"),
    [
        ((2, 1), (2, 1), None),
        ((4, 1), (2, 1), None),
        ((2, 1), (4, 1), None),
        ((3, 1), (2, 1), unsupported("other_parallelism")),
        ((2, 2), (2, 3), unsupported("other_parallelism")),
    ],
)
def test_ranks_must_divide_one_another(theirs: tuple[int, int], mine: tuple[int, int], told: Refusal | None) -> None:
    offer = an_offer(tp_size=theirs[0], dcp_size=theirs[1])
    assert refused(offer, a_reader(tp_size=mine[0], dcp_size=mine[1])) == told


def test_blocks_of_another_size_are_fine_where_ranks_split_heads_differently() -> None:
    offer = an_offer(tp_size=2, layout=KvLayout("hash-1", "LBHNC", 2048))
    assert refused(offer, a_reader(tp_size=1)) is None


def test_what_vllms_handshake_lets_pass_is_not_refused() -> None:
    other_build = an_offer(layout=KvLayout("hash-2", "LBHNC", 4096))
    assert refused(other_build, a_reader(checks_build=False)) is None
    other_order = an_offer(layout=KvLayout("hash-1", "LBHNC", 4096))
    mine = KvLayout("hash-1", "LBNHC", 4096)
    assert refused(other_order, a_reader(layout=mine)) == unsupported("other_memory_order")
    assert refused(other_order, a_reader(layout=mine, permutes=True)) is None
    assert refused(other_order, a_reader(layout=mine, ignores_memory_order=True)) is None
    reverse = an_offer(layout=KvLayout("hash-1", "LBNHC", 4096))
    assert refused(reverse, a_reader(permutes=True)) == unsupported("other_memory_order")


def test_an_engine_never_reads_from_one_of_its_own_role() -> None:
    assert refused(an_offer(role=Role.DECODE), a_reader(role=Role.DECODE)) == rejected("same_role")
    assert refused(an_offer(role=Role.PREFILL), a_reader(role=Role.DECODE)) is None


# ---------------------------------------------------------------- peers

KNOWN = Peer(name="d-0", incarnation="boot-3", former=("boot-2", "boot-1"))


@pytest.mark.parametrize(
    ("incarnation", "told"),
    [
        pytest.param("boot-3", None, id="current"),
        pytest.param("boot-4", None, id="newer than the list"),
        pytest.param("boot-2", Refusal(Decision.SOURCE_LOST, "engine_replaced"), id="replaced"),
        pytest.param("boot-1", Refusal(Decision.SOURCE_LOST, "engine_replaced"), id="replaced long ago"),
    ],
)
def test_a_listed_engine_is_read_unless_its_process_is_known_to_be_gone(incarnation: str, told: Refusal | None) -> None:
    assert refused(an_offer(incarnation=incarnation), book=peers(KNOWN)) == told


def test_an_engine_that_is_not_listed_is_rejected() -> None:
    assert refused(an_offer(engine="d-1"), book=peers(KNOWN)) == rejected("unknown_engine")
    assert refused(an_offer(), book=peers()) == rejected("unknown_engine")


def test_without_a_list_signatures_alone_decide() -> None:
    assert refused(an_offer(engine="d-1"), book=PeerBook()) is None
    book = peers(KNOWN)
    book.set(SetPeers(peers=None))
    assert refused(an_offer(engine="d-1"), book=book) is None


def test_a_listed_engine_that_nobody_has_heard_yet_is_read() -> None:
    assert refused(an_offer(), book=peers(Peer(name="d-0"))) is None


def test_a_new_list_replaces_the_old_one_whole() -> None:
    book = peers(KNOWN)
    book.set(SetPeers(peers=(Peer(name="d-1"),)))
    assert refused(an_offer(engine="d-1"), book=book) is None
    assert refused(an_offer(), book=book) == rejected("unknown_engine")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"engine": "d-1", "block_size": 8}, rejected("unknown_engine")),
        ({"incarnation": "boot-2", "block_size": 8}, unsupported("other_block_size")),
        ({"engine": "d-1", "tenant": "other"}, rejected("other_tenant")),
    ],
)
def test_reasons_come_in_the_contracts_order(changes: dict[str, Any], told: Refusal) -> None:
    assert refused(an_offer(**changes), book=peers(KNOWN)) == told
