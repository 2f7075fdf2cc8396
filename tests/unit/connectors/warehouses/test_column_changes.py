"""What becomes of columns when the source's are others: by random changes against a model, and each rule by itself."""

from __future__ import annotations

import pytest
from cdcworker.connectors.sink_errors import SCHEMA_REFUSED
from cdcworker.connectors.warehouses.column_changes import NAME_BYTES_MAX, TargetTableColumn, dropped_name, plan, steps
from cdcworker.schemas.errors import CdcError
from hypothesis import given
from hypothesis import strategies as st

from tests.contract import column_scripts as scripts

HAVE = [TargetTableColumn("id", 1), TargetTableColumn("s", 2), TargetTableColumn("t", 3), TargetTableColumn("mine")]


def planned(*want, have=HAVE, key=("id",)):
    return plan(have, [TargetTableColumn("id", 1), *(TargetTableColumn(*pair) for pair in want)], key, {"topic": "t"})


def done(table, names):
    """Renames run one after the other on a table that takes no name twice."""
    for old, new in names:
        assert new not in table
        table[new] = table.pop(old)


def left(table, names):
    """Those that somebody who looks at the names alone finds to be done still."""
    return [(old, new) for old, new in names if old in table and new not in table]


@given(st.lists(scripts.changes, max_size=8), st.randoms(use_true_random=False))
def test_any_changes_leave_every_column_its_values_and_the_sources_their_names(script, chance):
    source = scripts.Source()
    table = {column.name: column.id for column in source.columns} | {"mine": None, "a_dropped_2": None}
    for change in script:
        source.apply(change)
        if chance.random() < 0.4:
            # The sink sees several changes at once.
            continue
        before, want = dict(table), list(source.columns)
        chance.shuffle(want)
        found = plan([TargetTableColumn(*pair) for pair in table.items()], want, ("id",), {})
        for step in found.steps:
            seen = chance.randrange(len(step) + 1)
            done(table, step[:seen])
            assert left(table, step) == list(step[seen:])
            done(table, step[seen:])
        assert {new: before[old] for old, new in found.names.items()} == table
        assert not set(found.added) & set(table)
        ids = {column.name: column.id for column in want}
        table |= {name: ids[name] for name in found.added}
        assert table | ids == table
        assert {id for id in before.values() if id is not None} <= set(table.values())
        assert table["mine"] is None
        assert table["a_dropped_2"] is None
        assert all(len(name.encode()) <= NAME_BYTES_MAX for name in table)


def test_a_column_of_a_dropped_ones_name_is_new_and_the_dropped_one_makes_room():
    found = planned(("s", 4), ("t", 3))
    assert (dict(found.names), found.dropped, found.added) == (
        {"id": "id", "s": "s_dropped_2", "t": "t", "mine": "mine"},
        ("s",),
        ("s",),
    )
    assert planned(("t", 3)).steps == ((), ())


def test_names_are_exchanged_by_way_of_others_and_those_in_a_row_are_not():
    assert planned(("t", 2), ("s", 3)).steps == (
        (("s", "_cdc_moving_0"), ("t", "_cdc_moving_1")),
        (("_cdc_moving_0", "t"), ("_cdc_moving_1", "s")),
    )
    assert planned(("t", 2), ("u", 3)).steps == ((("t", "u"),), (("s", "t"),))
    assert steps({"a": "b", "b": "a", "_cdc_moving_0": "_cdc_moving_0"})[0][0] == ("a", "_cdc_moving_0_")


def test_without_an_identity_the_name_decides():
    assert planned(("s", None), ("mine", 9)).names == {column.name: column.name for column in HAVE}
    assert planned(("s", None), ("mine", 9)).added == ()
    assert planned(("t", 2), ("s", None)).added == ("s",)


@pytest.mark.parametrize(
    ("want", "where"),
    [
        ([("mine", 2)], {"topic": "t", "column": "mine"}),
        ([("mine", 2), ("s", 3)], {"topic": "t", "column": "mine"}),
    ],
)
def test_a_column_that_is_not_known_to_be_the_sources_keeps_its_name(want, where):
    with pytest.raises(CdcError) as caught:
        planned(*want)
    assert (caught.value.code, caught.value.where) == (SCHEMA_REFUSED, where)


def test_no_other_column_becomes_one_of_the_key():
    for want in (
        [TargetTableColumn("id", 2)],
        [TargetTableColumn("id", 9)],
        [TargetTableColumn("s", 1), TargetTableColumn("id", 2)],
    ):
        with pytest.raises(CdcError) as caught:
            plan(HAVE, want, ("id",), {})
        assert caught.value.code == SCHEMA_REFUSED
        assert plan(HAVE, want, (), {})


def test_names_of_dropped_columns_fit_and_are_nobodys():
    assert dropped_name("s", 2, ()) == "s_dropped_2"
    assert dropped_name("s", 2, {"s_dropped_2"}) == "s_dropped_2_"
    long = "ü" * 31 + "x"
    found = {dropped_name(long, 12, ())}
    found.add(dropped_name(long, 12, found))
    assert all(len(name.encode()) <= NAME_BYTES_MAX and name.startswith("ü" * 25) for name in found)
    assert len(found) == 2
    assert {name[-11:].strip("_") for name in found} == {"dropped_12"}
