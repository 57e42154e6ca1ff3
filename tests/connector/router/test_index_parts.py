"""The pieces of the index on their own: tables of slots, packed offers, names with users."""

import base64
import hashlib
import secrets

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from connector.router.chain import HASH_BYTES, PACKED_BYTES, pack_chain
from connector.router.directory import Directory
from connector.router.names import Names
from connector.router.offers import OfferPacker
from connector.router.pool import MAX_BYTES, SLAB_BYTES, Pool
from connector.router.records import Record, Records
from connector.router.slots import SlotTable
from connector.signing import FleetKey
from tests.load.bench_index import Traffic

KEYS = st.sampled_from([0, 1, 1 << 10, 2 << 10, 3 << 42, -1, -(1 << 63), (1 << 63) - 1])


def look_alike(one: int, other: int) -> bool:
    """A table keeps 42 bits of a key."""
    return (one ^ other) & ((1 << 42) - 1) == 0


@given(st.lists(st.tuples(st.booleans(), KEYS, st.integers(0, 40)), max_size=120))
def test_table_finds_what_was_added_and_not_removed(operations: list[tuple[bool, int, int]]) -> None:
    """Few hashes, so that places are taken, wrapped around and closed again."""
    table, model = SlotTable(), list[tuple[int, int]]()
    for is_addition, key, slot in operations:
        if is_addition:
            table.add(key, slot)
            model.append((key, slot))
        elif (key, slot) in model:
            table.remove(key, slot)
            model.remove((key, slot))
        elif not any(slot == other_slot and look_alike(key, other) for other, other_slot in model):
            with pytest.raises(KeyError):
                table.remove(key, slot)
    assert table.num_entries == len(model)
    for key, slot in model:
        assert slot in table.find(key)
    for key in {key for key, _ in model}:
        alike = [slot for other, slot in model if look_alike(key, other)]
        assert sorted(table.find(key)) == sorted(alike)


def test_table_takes_few_bytes_an_entry_and_gives_them_back() -> None:
    table = SlotTable()
    keys = [int.from_bytes(hashlib.blake2b(str(n).encode(), digest_size=8).digest()) for n in range(100_000)]
    for slot, key in enumerate(keys):
        table.add(key, slot)
    num_places = sum(len(shard) for shard in table._shards if shard is not None)
    assert 8 * num_places < 13 * len(keys)
    for slot, key in enumerate(keys):
        table.remove(key, slot)
    assert table._shards == [None] * len(table._shards)


@given(st.lists(st.tuples(st.sampled_from(["add", "remove", "move"]), st.sampled_from("abc"), st.integers(0, 30))))
def test_directory_finds_what_its_keys_have_whether_recent_or_not(operations: list[tuple[str, str, int]]) -> None:
    directory, model = Directory[str](max_recent=2), list[tuple[str, int]]()
    for number, (what, key, slot) in enumerate(operations):
        if what == "add":
            directory.add(key, slot)
            model.append((key, slot))
        elif (key, slot) not in model:
            with pytest.raises(KeyError):
                directory.remove(key, slot)
        elif what == "remove":
            directory.remove(key, slot)
            model.remove((key, slot))
        else:
            directory.move(key, slot, 100 + number)
            model.remove((key, slot))
            model.append((key, 100 + number))
    assert directory.num_entries == len(model)
    for key in "abc":
        assert sorted(directory.find(key)) == sorted(slot for other, slot in model if other == key)


OFFERS = [
    "",
    "offer",
    "k1..",
    "k1.AAAA.zz",
    f"k1.AAA.{'0' * 64}",
    f"k1.AAAA.{'A' * 64}",
    f"k1.AAAA.{'0' * 64}.more",
    f"k1.AAAA.{'0' * 64}",
    f"{'k' * 300}.AAAA.{'0' * 64}",
    f"k1.{'-_' * 6}.{'a1' * 32}",
    f"k1.AAAB.{'0' * 62}é",
]


@pytest.mark.parametrize("first", OFFERS)
@pytest.mark.parametrize("offer", OFFERS)
def test_every_text_comes_back_as_it_was(first: str, offer: str) -> None:
    packer = OfferPacker(first)
    assert packer.unpack(packer.pack(offer, (b"hint",)), (b"hint",)) == offer


@given(st.text(max_size=100), st.text(max_size=100))
def test_any_text_comes_back_whatever_the_template(first: str, offer: str) -> None:
    packer = OfferPacker(first)
    assert packer.unpack(packer.pack(offer)) == offer


FIELDS = st.dictionaries(
    st.sampled_from(["a", "ab", "lease", "host", "n"]),
    st.one_of(
        st.integers(-(1 << 63), (1 << 63) - 1),
        st.binary(max_size=400),
        st.text(max_size=300),
        st.lists(st.integers(0, 1 << 33)),
    ),
)


@given(FIELDS, FIELDS, st.lists(st.binary(max_size=3), max_size=2))
def test_any_map_comes_back_whatever_the_template_and_the_hints(
    first: dict[str, object], fields: dict[str, object], hints: list[bytes]
) -> None:
    """Names of fields stand in values too, and hints in names."""
    packer, offer = OfferPacker(_signed(first)), _signed(fields)
    known = tuple(hints)
    assert packer.unpack(packer.pack(offer, known), known) == offer


def _signed(fields: dict[str, object]) -> str:
    return f"k1.{base64.urlsafe_b64encode(msgspec.msgpack.encode(fields)).decode()}.{'0' * 64}"


@pytest.mark.parametrize("num_blocks", [1, 16, 70, 1000])
def test_signed_offers_take_little_more_than_what_only_they_say(num_blocks: int) -> None:
    (_, first), *others = Traffic(num_blocks, 8).leases(50)
    packer = OfferPacker(first.offer)
    for _, lease in others:
        hints = lease.lease.lease_id.encode(), lease.lease.turn_id.encode()
        packed = packer.pack(lease.offer, hints)
        assert packer.unpack(packed, hints) == lease.offer
        assert len(packed) < 210 + 21 * num_blocks


def test_offers_of_a_rotated_key_come_back_under_the_old_template() -> None:
    (_, old), (_, new) = Traffic(16, 8).leases(2)
    payload = new.offer.split(".")[1]
    offer = f"key-2.{payload}.{secrets.token_hex(32)}"
    packer = OfferPacker(old.offer)
    assert packer.unpack(packer.pack(offer)) == offer
    assert FleetKey({"k": b"k" * 32}).active_id == "k"


RECORDS = st.builds(
    Record,
    st.text(),
    st.text(),
    st.text(),
    st.binary(max_size=300),
    st.one_of(st.just(""), st.text(max_size=100), FIELDS.map(_signed)),
    st.integers(1, 3),
)


@given(st.lists(st.tuples(st.integers(0, 9), RECORDS), max_size=30), st.integers(0, 4), st.integers(0, 3000))
def test_records_come_back_as_they_were_fresh_or_packed(
    puts: list[tuple[int, Record]], max_fresh: int, max_fresh_bytes: int
) -> None:
    """A record without an offer has no holder. The bytes that were told are those that come back."""
    sizes = dict.fromkeys(range(10), 0)

    def note_packed(slot: int, num_bytes: int) -> None:
        sizes[slot] += num_bytes

    records, model = Records(note_packed, max_fresh, max_fresh_bytes), dict[int, Record]()
    for slot, record in puts:
        model[slot] = record if record.offer else record._replace(holder=0)
        sizes[slot] += records.put(slot, model[slot])
    for slot, record in model.items():
        assert records.get(slot) == record
        assert sizes[slot] > 0
        assert records.is_of_session(slot, record.session_id)
        assert not records.is_of_session(slot, record.session_id + "x")
    assert records.num_fresh <= max_fresh
    assert records.num_fresh + records.num_packed == len(model)
    for slot in model:
        records.remove(slot)
    assert (records.num_fresh, records.num_packed) == (0, 0)


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("abc")), max_size=60))
def test_names_live_as_long_as_their_users(operations: list[tuple[bool, str]]) -> None:
    names, users = Names[str](), dict.fromkeys("abc", 0)
    numbers: dict[str, int] = {}
    for is_taken, name in operations:
        if is_taken:
            numbers[name] = names.take(name)
            users[name] += 1
        elif users[name]:
            users[name] -= 1
            assert names.drop(numbers[name]) is (users[name] == 0)
    alive = {name: count for name, count in users.items() if count}
    assert {name: count for _, name, count in names.items()} == alive
    assert all(names.name(numbers[name]) == name for name in alive)
    assert len({numbers[name] for name in alive}) == len(alive)
    assert names.name(0) is None


@given(st.lists(st.one_of(st.binary(min_size=HASH_BYTES, max_size=HASH_BYTES).map(bytes.hex), st.text(max_size=30))))
def test_packed_chains_are_equal_as_far_as_their_texts_are(chain: list[str]) -> None:
    """Also when another version sends what is no hash."""
    whole = pack_chain(chain)
    assert len(whole) == PACKED_BYTES * len(chain)
    assert pack_chain(chain) == whole


class PoolMachine(RuleBasedStateMachine):
    """Strings of every length, the limits of the pool among them."""

    def __init__(self) -> None:
        super().__init__()
        self.pool, self.held, self.number = Pool(), dict[int, bytes](), 0

    @rule(length=st.one_of(st.integers(0, 3000), st.sampled_from([13, 14, 15, MAX_BYTES - 2, MAX_BYTES - 1])))
    def put(self, length: int) -> None:
        self.number += 1
        data = (self.number.to_bytes(4) * (length // 4 + 1))[:length]
        handle = self.pool.put(data)
        assert handle not in self.held or not data
        if data:
            self.held[handle] = data

    @precondition(lambda self: self.held)
    @rule(number=st.integers(0, 99))
    def remove(self, number: int) -> None:
        handle = list(self.held)[number % len(self.held)]
        self.pool.remove(handle)
        del self.held[handle]

    @invariant()
    def everything_is_there(self) -> None:
        for handle, data in self.held.items():
            assert handle < 1 << 32
            assert self.pool.get(handle) == data
            assert self.pool.holds(handle, data[2:5], 2)
            assert not self.pool.holds(handle, data[:4] + b"!", 0) or data[4:5] == b"!"
        assert self.pool.get(0) == b""
        assert self.pool.num_strings == len(self.held)


TestPool = PoolMachine.TestCase
TestPool.settings = settings(derandomize=True, deadline=None, max_examples=60, stateful_step_count=50)


def test_pool_gives_slabs_back_but_one() -> None:
    pool = Pool()
    for _ in range(2):
        handles = [pool.put(b"x" * 500) for _ in range(3000)]
        assert pool.num_slabs == 3000 // (SLAB_BYTES // 512) + 1
        for handle in handles:
            pool.remove(handle)
        assert pool.num_slabs == 1
