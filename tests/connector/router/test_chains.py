"""Conversation chains: pure functions, their properties and bounds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.router.chain import MAX_CHAIN, ChainHasher, mark_turn, split_mark, thin
from connector.router.session import SessionKeys

HASHER = ChainHasher(b"k" * 32)

MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "tool"]), "content": st.text(max_size=5)}),
    max_size=8,
)


def chat(
    messages: list[object],
    tenant: str = "t",
    model: str = "m",
    tools: object = None,
    hasher: ChainHasher = HASHER,
) -> list[str]:
    return hasher.messages("chat", tenant, model, tools, hasher.parts(messages))


def common(one: list[str], other: list[str]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@given(shared=MESSAGES, one=MESSAGES, other=MESSAGES)
def test_chains_share_exactly_the_common_messages(shared: list[object], one: list[object], other: list[object]) -> None:
    first, second = shared + one, shared + other
    expected = next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )
    chains = [chat(messages) for messages in (first, second)]
    assert common(*chains) == expected
    assert [len(chain) for chain in chains] == [len(first), len(second)]


@given(prefix=st.text(max_size=3000), more=st.text(min_size=1, max_size=600))
def test_longer_text_extends_the_chain_of_whole_chunks(prefix: str, more: str) -> None:
    short, long = (HASHER.text("t", "m", text) for text in (prefix, prefix + more))
    whole = len(prefix.encode()) // 256
    assert short[:whole] == long[:whole]
    assert len(short) <= max(1, whole)


def test_tenant_model_tools_and_kind_each_change_every_hash() -> None:
    message = [{"role": "user", "content": "hi"}]
    chains = [
        chat(message),
        chat(message, tenant="u"),
        chat(message, model="n"),
        chat(message, tools=[{"a": 1}]),
        HASHER.text("t", "m", "hi"),
        HASHER.text("t", "m", [104, 105]),
        chat(message, hasher=ChainHasher(b"x" * 32)),
        chat(message, tenant="tm", model=""),
    ]
    assert len({chain[0] for chain in chains}) == len(chains)


def test_megabyte_prompt_stays_bounded() -> None:
    chain = HASHER.text("t", "m", "x" * 1_000_000)
    assert 200 < len(chain) < 400
    tokens = HASHER.text("t", "m", list(range(100_000)))
    assert len(tokens) < 400


@pytest.mark.parametrize("length", [0, 1, 255, 256, 257, 400, 5000])
def test_thinned_chain_keeps_ends_order_and_bound(length: int) -> None:
    chain = [f"{number:024x}" for number in range(length)]
    kept = thin(chain)
    assert len(mark_turn(3, kept)) <= MAX_CHAIN + 1 == 256
    assert list(kept) == sorted(set(kept))
    assert kept[-128:] == tuple(chain[-128:])
    assert kept[:16] == tuple(chain[:16])
    if length <= MAX_CHAIN:
        assert list(kept) == chain


def test_turn_mark_comes_back_and_other_chains_are_left_alone() -> None:
    assert split_mark(mark_turn(41, ("a", "b"))) == (41, ("a", "b"))
    for foreign in ((), ("a",), ("#x", "b"), ("#", "b")):
        assert split_mark(foreign) == (0, foreign)


@given(one=st.tuples(st.text(), st.text()), other=st.tuples(st.text(), st.text()))
def test_session_ids_differ_for_different_tenants_or_keys(one: tuple[str, str], other: tuple[str, str]) -> None:
    keys = SessionKeys(b"k" * 32)
    try:
        ids = keys.session_id(*one), keys.session_id(*other)
    except UnicodeEncodeError:  # lone surrogates are refused by the JSON parser before they come here
        return
    assert (ids[0] == ids[1]) == (one == other)
    assert all(len(value) == 32 for value in ids)
