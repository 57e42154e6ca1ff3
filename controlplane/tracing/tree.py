"""The spans of a trace as a tree, whatever parents are missing or wrong; pure."""

from collections import defaultdict
from collections.abc import Sequence

import msgspec

MAX_DEPTH = 64
"""A deeper span hangs on its ancestor at this depth: JSON readers have a limit too."""


class Placed(msgspec.Struct, frozen=True):
    span_id: int
    parent_span_id: int | None


class Node(msgspec.Struct):
    span_id: int
    children: "list[Node]"


def tree_of(spans: Sequence[Placed]) -> list[Node]:
    """Every span exactly once, below its parent; siblings and roots keep the order of ``spans``.

    Roots are spans without a parent among ``spans``. Of a ring of parents the first span becomes a root.
    """
    known = {span.span_id for span in spans}
    children: defaultdict[int | None, list[int]] = defaultdict(list)
    for span in spans:
        children[span.parent_span_id if span.parent_span_id in known else None].append(span.span_id)
    placed: set[int] = set()
    roots = [_grow(root, children, placed) for root in children[None]]
    roots += [_grow(span.span_id, children, placed) for span in spans if span.span_id not in placed]
    position = {span.span_id: index for index, span in enumerate(spans)}
    return sorted(roots, key=lambda root: position[root.span_id])


def _grow(root: int, children: dict[int | None, list[int]], placed: set[int]) -> Node:
    """Iterative, since a chain of spans may be longer than Python's stack."""
    placed.add(root)
    grown = Node(root, [])
    pending = [(grown, root, 1)]
    while pending:
        holder, span_id, depth = pending.pop()
        for child_id in children.get(span_id, ()):
            if child_id not in placed:
                placed.add(child_id)
                child = Node(child_id, [])
                holder.children.append(child)
                pending.append((child, child_id, depth + 1) if depth < MAX_DEPTH else (holder, child_id, depth))
    return grown
