"""Costs in seconds: what makes an engine dearer, and that nothing makes it cheaper than free."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.router.choice.costs import (
    Cost,
    DecodeLoad,
    decode_cost,
    keep_share,
    leases_ratio,
    prefill_cost,
    prefill_work,
)

COUNTS = st.integers(0, 10_000)
TOKENS = st.integers(0, 1_000_000)


@given(TOKENS, TOKENS, TOKENS, st.integers(0, 5000))
def test_prefill_gets_each_token_of_the_prompt_once(prompt: int, offered: int, local: int, threshold: int) -> None:
    work = prefill_work(prompt, offered, local, threshold)
    assert work.num_computed >= 0
    assert work.num_pulled >= 0
    assert work.num_pulled == 0 or work.num_pulled >= threshold
    assert work.num_computed + work.num_pulled + min(prompt, local) == prompt
    assert work.num_pulled <= max(0, offered - local)


@pytest.mark.parametrize(
    ("prompt", "offered", "local", "pulled", "computed"),
    [
        (1000, 0, 0, 0, 1000),
        (1000, 900, 0, 900, 100),
        (1000, 900, 850, 0, 150),
        (1000, 900, 800, 100, 100),
        (1000, 900, 1200, 0, 0),
        (1000, 2000, 0, 1000, 0),
        (1000, 63, 0, 0, 1000),
        (1000, 64, 0, 64, 936),
    ],
)
def test_prefill_work(prompt: int, offered: int, local: int, pulled: int, computed: int) -> None:
    work = prefill_work(prompt, offered, local, 64)
    assert (work.num_pulled, work.num_computed) == (pulled, computed)


@given(COUNTS, COUNTS, COUNTS, st.floats(0, 50), st.floats(0, 1), TOKENS)
def test_more_of_anything_never_makes_decode_cheaper(
    in_flight: int, running: int, waiting: int, ratio: float, share: float, lacking: int
) -> None:
    load = DecodeLoad(in_flight, running, waiting, ratio, share)
    cost = decode_cost(load, 1.0, lacking, 1e-5)
    assert min(cost.queue, cost.compute, cost.transfer, cost.keep) >= 0
    for more in (
        DecodeLoad(in_flight + 1, running, waiting, ratio, share),
        DecodeLoad(in_flight, running, waiting + 1, ratio, share),
        DecodeLoad(in_flight, running, waiting, ratio + 1, share),
    ):
        assert decode_cost(more, 1.0, lacking, 1e-5).total >= cost.total
    assert decode_cost(load, 1.0, lacking + 1, 1e-5).total >= cost.total


def test_leases_weigh_by_comparison_and_within_bounds() -> None:
    assert keep_share(DecodeLoad(leases_ratio=leases_ratio(500, 500))) == keep_share(
        DecodeLoad(leases_ratio=leases_ratio(520, 500))
    )
    assert keep_share(DecodeLoad(leases_ratio=leases_ratio(0, 500))) < keep_share(DecodeLoad(leases_ratio=1))
    assert keep_share(DecodeLoad(leases_ratio=leases_ratio(10**6, 1))) <= 0.05
    assert keep_share(DecodeLoad(leased_share=1.0)) > keep_share(DecodeLoad(leased_share=0.5))


def test_prefill_cost_has_its_parts_apart() -> None:
    cost = prefill_cost(prefill_work(1000, 900, 0, 64), 2000.0, 1e-4, 1e-5, 0.25)
    assert (cost.queue, cost.compute) == pytest.approx((0.2, 0.01))
    assert cost.transfer == pytest.approx(0.009 + 0.25)
    assert cost.total == pytest.approx(0.469)


def test_domination() -> None:
    assert Cost(1, 1, 1, 1).is_dominated_by(Cost(1, 1, 1, 0.5))
    assert not Cost(1, 1, 1, 1).is_dominated_by(Cost(1, 1, 1, 1))
    assert not Cost(1, 0, 0, 0).is_dominated_by(Cost(0, 0.1, 0, 0))
