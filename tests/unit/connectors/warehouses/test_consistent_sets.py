"""What readers are told of the tables of a source, also of those that stand still."""

from __future__ import annotations

from cdcworker.connectors.api.table_batch import VisibleThrough
from cdcworker.connectors.warehouses import consistent_sets as sets
from cdcworker.connectors.warehouses.consistent_sets import PublishedSets, SetMember

A, B = "shop.public.a", "shop.public.b"


class Writer:
    """Claims what it is told; a table's version is its state."""

    def __init__(self):
        self._states, self._valid = {}, PublishedSets()

    def valid(self):
        return self._valid

    def member(self, topic, state):
        return SetMember(("public", topic), state, state)

    def publish(self, shown, marks):
        self._valid.shown.update(shown)

    def versions(self):
        return {topic: member.version for topic, member in self._valid.shown["shop"].members.items()}


def told(writer, position, *left_out):
    sets.show(writer, {"shop": VisibleThrough(position, 0, left_out)}, {})


def test_a_table_that_is_left_out_stays_in_the_set_as_it_was_while_nobody_has_claimed_it():
    writer = Writer()
    writer._states = {A: 1, B: 1}
    told(writer, 10)
    writer._states = {A: 2}
    told(writer, 20, "public.b")
    assert writer.versions() == {A: 2, B: 1}
    writer._states = {A: 3, B: 2}
    told(writer, 30)
    assert writer.versions() == {A: 3, B: 2}


def test_one_that_nobody_writes_any_more_leaves_it():
    writer = Writer()
    writer._states = {A: 1, B: 1}
    told(writer, 10)
    writer._states = {A: 2}
    told(writer, 20)
    assert writer.versions() == {A: 2}
