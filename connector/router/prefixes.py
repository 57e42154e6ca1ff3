"""A radix tree of conversation chains: which turns share a prefix, and how much of it.

A node holds the run of hashes that its turns share beyond its parent, so a turn stores only what no other one begins
with. Nodes and turns are numbers, their facts columns: one conversation costs its hashes and about 90 bytes.

Hashes cover everything before them, so a node is found by its first hash alone. Chains of more than 255 messages were
thinned: their runs leave hashes out, and a prompt that has them all still follows.
"""

from array import array
from collections.abc import Iterator
from heapq import heappop, heappush

import msgspec

from connector.router.chain import MAX_CHAIN, PACKED_BYTES
from connector.router.directory import Directory
from connector.router.runs import first_of, follow, num_common_of

MAX_CANDIDATES = 32
"""Turns looked at per prefix or session: thousands may share a system prompt, and the latest serve as well as any."""

MAX_VISITS = 4 * MAX_CANDIDATES
MAX_BRANCHES = 64
"""Nodes that one prompt may end in; more than one only among thinned chains."""

NONE = 0
"""No node: the root, whose children aren't linked, since nothing is shared there. Turns are linked as slot + 1."""


class Share(msgspec.Struct, frozen=True):
    """The prompt's first ``num_hashes`` are in all chains under ``node``; ``is_whole`` where some chain ends there."""

    num_hashes: int
    node: int
    is_whole: bool


class PrefixTree:
    """Every method is O(length of a chain) at most."""

    def __init__(self) -> None:
        self._edges: list[bytes] = [b""]
        self._parent, self._child, self._next, self._prev = (array("I", [NONE]) for _ in range(4))
        self._first_turn = array("I", [NONE])
        self._stamp = array("Q", [0])
        self._free: list[int] = []
        self._nodes = Directory[bytes]()
        self._turn_node, self._turn_next, self._turn_prev = array("I"), array("I"), array("I")
        self._turn_stamp = array("Q")
        self._clock = 0
        self.num_thinned = 0

    @property
    def num_nodes(self) -> int:
        return len(self._edges) - 1 - len(self._free)

    def num_hashes(self) -> int:
        return sum(map(len, self._edges)) // PACKED_BYTES

    # ------------------------------------------------ reading

    def shares(self, chain: bytes) -> list[Share]:
        """What chains have in common with a prompt's, the most first. ``chain`` is packed."""
        found: list[Share] = []
        open_ends = [(NONE, 0)]
        while open_ends and len(found) < MAX_BRANCHES + MAX_CHAIN:
            above, position = open_ends.pop()
            for node, start in self._children_on(above, chain, position):
                length, end = follow(self._edges[node], chain, start)
                is_end = length * PACKED_BYTES == len(self._edges[node])
                found.append(Share(end, node, is_end and self._first_turn[node] != NONE))
                if is_end and self._child[node]:
                    open_ends.append((node, end))
        found.sort(key=lambda share: share.num_hashes, reverse=True)
        return found

    def latest(self, node: int, limit: int = MAX_CANDIDATES) -> list[int]:
        """Turns under the node, the latest first. In a crowd that was thinned out it may stop before the limit."""
        heap, found = [(-self._stamp[node], node << 1)], list[int]()
        for _ in range(MAX_VISITS):
            if not heap or len(found) == limit:
                break
            item = heappop(heap)[1]
            if item & 1:
                found.append(item >> 1)
                self._push_turn(heap, self._turn_next[item >> 1])
                continue
            visited = item >> 1
            self._push_turn(heap, self._first_turn[visited])
            for other in (self._child[visited], NONE if visited == node else self._next[visited]):
                if other:
                    heappush(heap, (-self._stamp[other], other << 1))
        return found

    def ending_at(self, node: int, limit: int = MAX_CANDIDATES) -> list[int]:
        """Turns whose whole chain ends at the node, the latest first."""
        found: list[int] = []
        link = self._first_turn[node]
        while link and len(found) < limit:
            found.append(link - 1)
            link = self._turn_next[link - 1]
        return found

    def tail(self, slot: int) -> bytes:
        """The last hash of the turn's chain; empty for a turn without one."""
        return self._edges[self._turn_node[slot]][-PACKED_BYTES:]

    def head(self, slot: int) -> bytes:
        """The first hash of the turn's chain; empty for a turn without one."""
        node = self._turn_node[slot]
        while self._parent[node]:
            node = self._parent[node]
        return self._edges[node][:PACKED_BYTES]

    def begins(self, slot: int, other: int) -> bool:
        """Whether ``other`` goes on where the turn's chain ends, or ends there too."""
        node, wanted = self._turn_node[other], self._turn_node[slot]
        while node not in (wanted, NONE):
            node = self._parent[node]
        return node == wanted

    # ------------------------------------------------ changing

    def add(self, slot: int, chain: bytes) -> None:
        """The turn must not be in the tree. Without a chain it is found by no prompt."""
        while len(self._turn_node) <= slot:
            for column in (self._turn_node, self._turn_next, self._turn_prev, self._turn_stamp):
                column.append(0)
        self._clock += 1
        self.num_thinned += len(chain) >= MAX_CHAIN * PACKED_BYTES
        node = self._node_of(chain)
        self._turn_node[slot], self._turn_stamp[slot] = node, self._clock
        if not node:
            return
        first = self._first_turn[node]
        self._turn_next[slot], self._turn_prev[slot], self._first_turn[node] = first, NONE, slot + 1
        if first:
            self._turn_prev[first - 1] = slot + 1
        while node:
            self._stamp[node] = self._clock
            self._move_to_front(node)
            node = self._parent[node]

    def remove(self, slot: int, num_hashes: int) -> None:
        """``num_hashes``: of the turn's chain, as it was added."""
        self.num_thinned -= num_hashes >= MAX_CHAIN
        node, after, before = self._turn_node[slot], self._turn_next[slot], self._turn_prev[slot]
        self._turn_node[slot] = self._turn_next[slot] = self._turn_prev[slot] = NONE
        if not node:
            return
        if before:
            self._turn_next[before - 1] = after
        else:
            self._first_turn[node] = after
        if after:
            self._turn_prev[after - 1] = before
        self._tidy(node)

    # ------------------------------------------------ inside

    def _children_on(self, above: int, chain: bytes, position: int) -> Iterator[tuple[int, int]]:
        """Nodes below that go on with a hash of the prompt, and where; later ones only if thinned chains are known."""
        num_places = len(chain) // PACKED_BYTES
        for place in range(position, num_places if self.num_thinned else min(position + 1, num_places)):
            node = self._child_at(above, chain, place * PACKED_BYTES)
            if node:
                yield node, place

    def _child_at(self, above: int, chain: bytes, start: int) -> int:
        first = chain[start : start + PACKED_BYTES]
        for node in self._nodes.find(first):
            if self._parent[node] == above and self._edges[node].startswith(first):
                return node
        return NONE

    def _node_of(self, chain: bytes) -> int:
        """The node at which the chain ends, made if there is none."""
        node, start = NONE, 0
        while start < len(chain):
            child = self._child_at(node, chain, start)
            if not child:
                return self._new_node(node, chain[start:])
            edge = self._edges[child]
            num_common = num_common_of(edge, chain[start : start + len(edge)])
            if num_common * PACKED_BYTES < len(edge):
                child = self._split(child, num_common * PACKED_BYTES)
            node, start = child, start + num_common * PACKED_BYTES
        return node

    def _new_node(self, parent: int, edge: bytes) -> int:
        if self._free:
            node = self._free.pop()
        else:
            node = len(self._edges)
            self._edges.append(b"")
            for column in (self._parent, self._child, self._next, self._prev, self._first_turn, self._stamp):
                column.append(0)
        self._edges[node], self._parent[node] = edge, parent
        self._nodes.add(first_of(edge), node)
        self._link(node)
        return node

    def _split(self, lower: int, num_bytes: int) -> int:
        """Puts a node in the middle of another one's run, and returns it."""
        edge, parent = self._edges[lower], self._parent[lower]
        self._unlink(lower)
        self._nodes.remove(first_of(edge), lower)
        upper = self._new_node(parent, edge[:num_bytes])
        self._edges[lower], self._parent[lower] = edge[num_bytes:], upper
        self._nodes.add(first_of(self._edges[lower]), lower)
        self._link(lower)
        self._stamp[upper] = self._stamp[lower]
        return upper

    def _tidy(self, node: int) -> None:
        """Takes out nodes that no turn needs, and joins a node with its only child."""
        while node and not self._first_turn[node]:
            parent, child = self._parent[node], self._child[node]
            if child and self._next[child]:
                return
            edge = self._edges[node]
            self._nodes.remove(first_of(edge), node)
            if child:
                self._nodes.remove(first_of(self._edges[child]), child)
                self._edges[child] = edge + self._edges[child]
                self._nodes.add(first_of(edge), child)
                self._take_place(child, node)
            else:
                self._unlink(node)
            self._edges[node], self._parent[node], self._child[node], self._stamp[node] = b"", NONE, NONE, 0
            self._free.append(node)
            if child:
                return
            node = parent

    def _link(self, node: int) -> None:
        parent = self._parent[node]
        if parent:
            first = self._child[parent]
            self._next[node], self._prev[node], self._child[parent] = first, NONE, node
            if first:
                self._prev[first] = node

    def _unlink(self, node: int) -> None:
        parent, after, before = self._parent[node], self._next[node], self._prev[node]
        if before:
            self._next[before] = after
        elif parent:
            self._child[parent] = after
        if after:
            self._prev[after] = before
        self._next[node] = self._prev[node] = NONE

    def _take_place(self, child: int, node: int) -> None:
        """Of its parent among that one's siblings, which are in the order of their stamps."""
        parent, after, before = self._parent[node], self._next[node], self._prev[node]
        self._parent[child], self._next[child], self._prev[child] = parent, after, before
        self._stamp[child] = self._stamp[node]
        if before:
            self._next[before] = child
        elif parent:
            self._child[parent] = child
        if after:
            self._prev[after] = child
        self._next[node] = self._prev[node] = NONE

    def _move_to_front(self, node: int) -> None:
        if self._prev[node]:
            self._unlink(node)
            self._link(node)

    def _push_turn(self, heap: list[tuple[int, int]], link: int) -> None:
        if link:
            heappush(heap, (-self._turn_stamp[link - 1], (link - 1) << 1 | 1))
