"""How a table's columns follow those of a batch, and where the table is."""

from __future__ import annotations

import pyarrow as pa
import pytest
from cdcworker.connectors.api.table_batch import POSITION, TableBatch
from cdcworker.connectors.sink_errors import TARGET_COLLISION
from cdcworker.connectors.warehouses.sql import catalog
from cdcworker.connectors.warehouses.sql.dropped_columns import SettledColumns
from cdcworker.connectors.warehouses.sql.target_table import SqlTable
from cdcworker.connectors.warehouses.target_columns import OutputForm
from cdcworker.schemas.errors import CdcError

TOPIC = "shop.public.orders"
TYPES = catalog.OwnTypes("text", "boolean", "moment", "now()")


def member(name, id=None, optional=True):
    type_ = ["null", "string"] if optional else "string"
    return {"name": name, "type": type_, "cdc.type": "text", **({"cdc.colid": id} if id else {})}


def batch(*members, key=("id",), path=()):
    rows = pa.table({})
    return TableBatch(TOPIC, key, rows, rows, {"fields": list(members)}, path)


def followed(part, columns, known, output=OutputForm(), settle=lambda _: SettledColumns()):  # noqa: B008 - it is frozen
    target = SqlTable("public", "orders", {}, catalog.key_of(part), catalog.columns_of(part))
    return catalog.followed(target, columns, known, part, output, settle)


ID = member("id", 1, optional=False)


def test_a_column_is_followed_by_the_sources_identity_of_it():
    found = followed(batch(ID, member("new", 2)), ["id", "old", POSITION], {1: "id", 2: "old"})
    assert found.planned.names == {"id": "id", "old": "new", POSITION: POSITION}
    assert found.names == {1: "id", 2: "new", catalog.POSITION_ID: POSITION}
    assert (found.deleted, found.settled) == ((), True)


def test_what_is_settled_is_no_column_of_the_table_any_more():
    settle = [SettledColumns(deleted=("b",), late=("late",), settled=False)]
    part = batch(ID, member("late", 3))
    found = followed(part, ["id", "b"], {1: "id", 2: "b"}, OutputForm(drop=True), lambda planned: settle.pop())
    assert [column.name for column in found.target.columns] == ["id"]
    assert found.planned.names == {"id": "id"}
    assert (found.names, found.deleted, found.settled) == ({1: "id", catalog.POSITION_ID: POSITION}, ("b",), False)


def test_of_several_names_for_one_column_it_has_the_sources():
    ids = {"a": 1}
    assert catalog.table_identities(["a", "b"], {1: "a", 2: "a", 3: "b"}, ids) == {"a": 1, "b": 3}
    assert catalog.table_identities(["a"], {1: "a", 2: "a"}, {}) == {"a": 2}


@pytest.mark.parametrize(
    ("path", "schema", "place"),
    [
        ((), "", ("public", "orders")),
        (("far", "away", "t"), "", ("away", "t")),
        (("t",), "", ("public", "t")),
        (("away", "t"), "all", ("all", "t")),
    ],
)
def test_a_table_is_where_its_source_has_it_unless_all_are_in_one_schema(path, schema, place):
    assert catalog.target_place(batch(path=path), schema) == place


def test_a_table_is_one_topics():
    owners = {}
    for _ in range(2):
        catalog.own_place(owners, ("a", "t"), ("A", "t"), "one")
    with pytest.raises(CdcError) as caught:
        catalog.own_place(owners, ("a", "t"), ("a", "T"), "other")
    assert (caught.value.code, caught.value.where) == (TARGET_COLLISION, {"table": "a.T", "topic": "other"})


def test_own_columns_are_those_of_the_form_of_output():
    def names(**form):
        return [column.name for column in catalog.own_columns(OutputForm(**form), TYPES, keyed=True)]

    assert names() == []
    assert names(log=True, synced="at") == ["_cdc_unchanged", "at"]
    assert names(soft=True) == ["_cdc_deleted"]
    assert catalog.own_columns(OutputForm(soft=True), TYPES, keyed=False) == []


def test_a_key_is_optional_where_the_source_has_nulls_in_it():
    part = batch(ID, member("part", 2), member("n", 3), key=("id", "part"))
    assert catalog.optional_key(part) == {"part"}
