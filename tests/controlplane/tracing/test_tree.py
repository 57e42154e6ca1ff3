"""Trees of spans: complete whatever the parents are, in order, and never too deep."""

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from controlplane.tracing.tree import MAX_DEPTH, Node, Placed, tree_of


def shape(nodes: list[Node]) -> list[object]:
    return [[node.span_id, *shape(node.children)] if node.children else node.span_id for node in nodes]


def walk(nodes: list[Node], depth: int = 1) -> Iterator[tuple[int, int]]:
    for node in nodes:
        yield node.span_id, depth
        yield from walk(node.children, depth + 1)


def test_children_hang_below_their_parents_in_order() -> None:
    spans = [Placed(1, None), Placed(2, 1), Placed(3, 1), Placed(4, 3), Placed(5, 2)]
    assert shape(tree_of(spans)) == [[1, [2, 5], [3, 4]]]


def test_span_with_a_missing_parent_is_a_root_in_its_place() -> None:
    assert shape(tree_of([Placed(1, 99), Placed(2, None), Placed(3, 98)])) == [1, 2, 3]


def test_parent_may_start_after_its_child() -> None:
    assert shape(tree_of([Placed(1, 2), Placed(2, None)])) == [[2, 1]]


def test_ring_of_parents_begins_at_its_first_span() -> None:
    assert shape(tree_of([Placed(1, 3), Placed(2, 1), Placed(3, 2)])) == [[1, [2, 3]]]
    assert shape(tree_of([Placed(7, 7)])) == [7]


def test_long_chain_is_flattened() -> None:
    spans = [Placed(number, number - 1 or None) for number in range(1, 3000)]
    found = list(walk(tree_of(spans)))
    assert len(found) == len(spans)
    assert max(depth for _, depth in found) == MAX_DEPTH + 1


@given(
    st.lists(st.tuples(st.integers(1, 12), st.none() | st.integers(1, 14)), max_size=12, unique_by=lambda pair: pair[0])
)
def test_every_span_shows_exactly_once(pairs: list[tuple[int, int | None]]) -> None:
    spans = [Placed(*pair) for pair in pairs]
    assert sorted(span_id for span_id, _ in walk(tree_of(spans))) == sorted(span.span_id for span in spans)
