"""SlotMap and Pool against a model of plain lists: no slot in two places, freed slots reused lowest first."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from specdec.targets.kv import SlotMap


class Slots(RuleBasedStateMachine):
    """Rows of up to three groups that append, commit and finish in any order."""

    @initialize(
        groups=st.lists(st.integers(0, 2), min_size=1, max_size=5),
        lengths=st.lists(st.integers(1, 6), min_size=3, max_size=3),
    )
    def begin(self, groups: list[int], lengths: list[int]) -> None:
        self.map = SlotMap(groups)
        self.groups = groups
        self.tokens: list[list[int]] = []  # the row's tokens, as the slots they were written to
        self.pending: list[list[tuple[int, int]]] = [[] for _ in groups]  # (slot, parent)
        self.live = set(range(len(groups)))
        self.peak = {group: 0 for group in groups}
        for row, group in enumerate(groups):
            self.map.fill(row, lengths[group])
            self.tokens.append(list(range(lengths[group])))

    def in_use(self, group: int) -> Counter:
        """How many rows of the group hold each slot."""
        found: Counter = Counter()
        for row in self.live:
            if self.groups[row] == group:
                found.update(self.tokens[row])
                found.update(slot for slot, _ in self.pending[row])
        return found

    @rule(data=st.data(), count=st.integers(1, 5))
    def add(self, data: st.DataObject, count: int) -> None:
        if not self.live:
            return
        row = data.draw(st.sampled_from(sorted(self.live)))
        before = len(self.pending[row])
        parents = [data.draw(st.integers(-1, before + i - 1)) for i in range(count)]
        used = self.in_use(self.groups[row])
        free = [slot for slot in range(max(used, default=0) + count + 1) if slot not in used]
        taken = self.map.add(row, parents)
        assert taken == free[:count]
        self.pending[row].extend(zip(taken, parents, strict=True))
        for node in range(before, before + count):
            chain = []
            at = node
            while at >= 0:
                chain.append(self.pending[row][at][0])
                at = self.pending[row][at][1]
            assert self.map.rows[row].ancestors(node) == chain
            assert self.map.rows[row].pending[node].depth == len(chain) - 1

    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        rows = [row for row in sorted(self.live) if self.pending[row]]
        if not rows:
            return
        row = data.draw(st.sampled_from(rows))
        leaf = data.draw(st.integers(-1, len(self.pending[row]) - 1))
        path = []
        while leaf >= 0:
            path.append(leaf)
            leaf = self.pending[row][leaf][1]
        path.reverse()
        self.map.commit(row, path)
        self.tokens[row] += [self.pending[row][node][0] for node in path]
        self.pending[row] = []

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if not self.live:
            return
        row = data.draw(st.sampled_from(sorted(self.live)))
        self.map.release(row)
        self.live.remove(row)
        self.tokens[row], self.pending[row] = [], []

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "map"):
            return
        for row, rows in enumerate(self.map.rows):
            assert rows.slots == self.tokens[row]
            assert [(node.slot, node.parent) for node in rows.pending] == self.pending[row]
            if row in self.live:
                # `dense` may be given up for good, but is never claimed wrongly.
                assert not rows.dense or rows.slots == list(range(len(rows.slots)))
        for group in set(self.groups):
            used = self.in_use(group)
            assert self.map.pools[group].used == len(used)
            # What two rows hold is the prompt they share, at its own positions in both.
            for slot, owners in used.items():
                if owners > 1:
                    holders = [row for row in self.live if self.groups[row] == group and slot in self.tokens[row]]
                    assert len(holders) == owners
                    assert all(self.tokens[row][slot] == slot for row in holders)
            # The extent ends with a slot in use: nothing is kept beyond it.
            assert self.map.pools[group].fresh == max(used, default=-1) + 1
        assert self.map.extent == max(self.map.pools[group].fresh for group in set(self.groups))


Slots.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestSlots = Slots.TestCase


def test_extent_is_bounded_by_tokens_and_pending_nodes() -> None:
    """A single row never needs more slots than its tokens and the nodes of one pass, however they were spread."""
    slots = SlotMap([0])
    slots.fill(0, 4)
    for round_ in range(200):
        slots.add(0, (-1, 0, 0, 1, 2, 2))
        assert slots.extent <= len(slots.rows[0].slots) + 6
        slots.commit(0, [(0,), (0, 1), (0, 2, 5), (0, 1, 3)][round_ % 4])
        assert slots.pools[0].used == len(slots.rows[0].slots)
        assert slots.extent <= len(slots.rows[0].slots) + 5  # holes of the last pass, filled by the next
