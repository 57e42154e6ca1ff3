"""Which values hold where; pure."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.protocol import PolicyPatch, PolicyValues
from controlplane.policy.effective import (
    KINDS,
    PolicyBook,
    Scope,
    diff_patches,
    drifted_fields,
    engine_scopes,
    merge_patch,
    parse_scope,
)

SCOPES = [
    Scope("fleet"),
    Scope("model", "tiny"),
    Scope("role", "decode"),
    Scope("engine", "decode-0"),
    Scope("tenant", "acme"),
    Scope("session", "s1"),
]


@pytest.mark.parametrize(
    "text", ["fleet", "model:Qwen/Qwen3-32B", "role:prefill", "engine:decode-0", "tenant:a b", "session:x:y"]
)
def test_scope_reads_back_as_it_was_written(text: str) -> None:
    assert str(parse_scope(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "fleet:x",
        "planet:earth",
        "role:router",
        "engine:has space",
        "engine:",
        "tenant:",
        "tenant: x",
        "tenant:x\n",
        "tenant:" + "x" * 201,
        "model",
    ],
)
def test_bad_scope_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="scope"):
        parse_scope(text)


@given(st.dictionaries(st.sampled_from(SCOPES), st.integers(0, 1000)), st.permutations(SCOPES))
def test_narrowest_scope_wins_in_whatever_order_scopes_are_given(
    thresholds: dict[Scope, int], order: list[Scope]
) -> None:
    book = PolicyBook(1, {scope: PolicyPatch(kv_recompute_threshold=value) for scope, value in thresholds.items()})
    narrowest = max(thresholds, key=lambda scope: KINDS.index(scope.kind), default=None)
    expected = thresholds[narrowest] if narrowest else PolicyValues().kv_recompute_threshold
    assert book.effective(*order).kv_recompute_threshold == expected
    assert book.sources(*order)["kv_recompute_threshold"] == (str(narrowest) if narrowest else "default")


def test_each_field_is_resolved_by_itself() -> None:
    book = PolicyBook(
        2,
        {
            Scope("fleet"): PolicyPatch(kv_recompute_threshold=100, release_on_read=True),
            Scope("engine", "decode-0"): PolicyPatch(kv_recompute_threshold=0, bidirectional_kv_xfer=False),
        },
    )
    values = book.effective(*engine_scopes(name="decode-0", model="tiny", role="decode"))
    assert (values.kv_recompute_threshold, values.release_on_read, values.bidirectional_kv_xfer) == (0, True, False)
    assert book.effective(*engine_scopes(name="decode-1", model="", role="")).bidirectional_kv_xfer


def test_merge_lays_over_and_null_gives_back() -> None:
    base = PolicyPatch(kv_recompute_threshold=100, decoder_kv_blocks_ttl=60)
    merged = merge_patch(base, {"decoder_kv_blocks_ttl": None, "trace_sampling": 0.5})
    assert merged == PolicyPatch(kv_recompute_threshold=100, trace_sampling=0.5)
    assert diff_patches(base, merged) == [
        {"field": "decoder_kv_blocks_ttl", "before": 60, "after": None},
        {"field": "trace_sampling", "before": None, "after": 0.5},
    ]


def test_scope_that_sets_nothing_any_more_is_left_out() -> None:
    book = PolicyBook(3, {Scope("tenant", "a"): PolicyPatch(), Scope("tenant", "b"): PolicyPatch(trace_sampling=0.0)})
    assert list(book.of_kind("tenant")) == ["b"]


def test_drift_names_the_fields_that_differ() -> None:
    assert drifted_fields(PolicyValues(), PolicyValues()) == ()
    assert drifted_fields(PolicyValues(), PolicyValues(decoder_kv_blocks_ttl=0)) == ("decoder_kv_blocks_ttl",)
