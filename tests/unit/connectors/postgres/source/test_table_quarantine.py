"""Tables that are held back: what is remembered of them, and what takes them back."""

from __future__ import annotations

from typing import Any

import pytest
from cdcworker.connectors.capture.config.filters import TableFilters
from cdcworker.connectors.capture.tables.schema_guard import SchemaGuard
from cdcworker.connectors.capture.tables.table_quarantine import TableQuarantine
from cdcworker.connectors.postgres.config.settings import parse
from cdcworker.connectors.postgres.decode.table_plan import TableDecodePlan, TableDecodePlanner, build_plan
from cdcworker.connectors.postgres.decode.table_shape import check_shape, former_fingerprint
from cdcworker.connectors.postgres.errors import CAPTURE
from cdcworker.connectors.postgres.pgoutput import Relation, RelationColumn
from cdcworker.connectors.postgres.position import StoredPosition
from cdcworker.connectors.postgres.server.catalog import TypeNames
from cdcworker.connectors.postgres.types.mapping import HandlingModes, PgType
from cdcworker.connectors.snapshot_jobs import RepairedRows, repair_spec
from cdcworker.schemas.errors import CdcError

CONFIG = {
    "database.hostname": "h",
    "database.user": "u",
    "database.dbname": "d",
    "database.password": "secret",
    "topic.prefix": "p",
}
ERROR = CdcError("postgres.value_unsupported", "no form", where={"table": "public.t", "lsn": "0/1"})


def quarantine(stored: Any = None, jobs: Any = (), **config: str) -> TableQuarantine:
    return TableQuarantine(stored, parse(CONFIG | config).raw, lambda: jobs)


def held(jobs: Any = ()) -> Any:
    one = quarantine(jobs=jobs)
    one.hold({"public.t": ERROR})
    return one.to_json()


def test_a_held_table_is_not_captured_and_stays_so():
    one = quarantine(held())
    one.lift()
    assert (list(one.held), one.lifted, one.changed, one.due) == (["public.t"], [], False, False)
    filters = one.applied(parse(CONFIG).filters)
    assert (filters.table("public", "t"), filters.table("public", "u")) == (False, True)
    assert one.report()[0] | {"since_ms": 0} == {
        "table": "public.t", "code": ERROR.code, "message": "no form", "since_ms": 0, "lsn": "0/1",
    }  # fmt: skip


def test_another_config_takes_it_back_and_another_password_does_not():
    changed = quarantine(held(), **{"column.exclude.list": "public.t.v"})
    changed.lift()
    assert (changed.held, changed.lifted, changed.changed) == ({}, ["public.t"], True)
    same = quarantine(held(), **{"database.password": "other"})
    same.lift()
    assert list(same.held) == ["public.t"]


def test_a_snapshot_that_is_asked_for_later_takes_it_back():
    old = {"id": "1", "kind": "snapshot", "spec": {"tables": ["public.*"]}}
    other = {"id": "2", "kind": "snapshot", "spec": {"tables": ["public.u"]}}
    new = {"id": "3", "kind": "snapshot", "spec": {"tables": [r"public\.t"]}}
    stored = held([old])
    assert not quarantine(stored, [old, other]).due
    one = quarantine(stored, [old, other, new])
    assert one.due
    one.lift()
    assert one.lifted == ["public.t"]


@pytest.mark.parametrize("name", ["public.t", "public.a(b"], ids=["the held table", "a name that is no pattern"])
def test_a_repair_takes_no_table_back_whatever_its_tables_are_called(name: str):
    """It reads some rows: a table that came back for it would be emptied and read whole."""
    spec = repair_spec({name: RepairedRows(["id"], [["1"]], True)})
    asked = {"id": "7", "kind": "snapshot", "wanted": "RUNNING", "spec": spec}
    # As its tasks are told of it once it is cancelled.
    cancelled = {**asked, "wanted": "CANCELLED", "spec": {"tables": spec["tables"]}}
    stored = held()
    for job in (asked, cancelled):
        one = quarantine(stored, [job])
        assert not one.due
        one.lift()
        assert list(one.held) == ["public.t"]
        one.hold({"public.u": ERROR})


def test_it_is_part_of_the_position():
    value = StoredPosition("1", 1, "s", 0, 0, 0, quarantine=held(), shapes={"public.t": "a"}).to_json()
    again = StoredPosition.from_json(value)
    assert (again.quarantine, again.shapes) == (held() | again.quarantine, {"public.t": "a"})
    assert "quarantine" not in StoredPosition("1", 1, "s", 0, 0, 0).to_json()


def shape(*columns: tuple[str, int], key: str = "id", identity: str = "d") -> TableDecodePlan:
    marked = tuple(RelationColumn(n, oid, -1, identity == "f" or n in key.split()) for n, oid in columns)
    known = {oid: PgType(oid, name) for oid, name in ((20, "int8"), (23, "int4"), (25, "text"))}
    planner = TableDecodePlanner(None, HandlingModes(), TableFilters())  # type: ignore[arg-type]
    return build_plan(Relation(1, "public", "t", identity, marked), None, TypeNames(known), key.split(), planner)


def guarded(policy: str, stored: Any, plan: TableDecodePlan, filters: TableFilters | None = None) -> SchemaGuard:
    """The guard after it has let this shape through."""
    guard = SchemaGuard(policy, stored, CAPTURE)
    check_shape(guard, filters or TableFilters(), plan)
    return guard


def refused(policy: str, before: TableDecodePlan, after: TableDecodePlan, filters: TableFilters | None = None) -> str:
    guard = guarded(policy, None, before, filters)
    try:
        guarded(policy, guard.to_json(), after, filters)
    except CdcError as error:
        return error.code
    return ""


def test_each_policy_meets_each_change():
    before = shape(("id", 23), ("v", 25))
    changes = {
        "add": shape(("id", 23), ("v", 25), ("n", 23)),
        "drop": shape(("id", 23)),
        "rename": shape(("id", 23), ("w", 25)),
        "retype": shape(("id", 23), ("v", 23)),
        "widen": shape(("id", 20), ("v", 25)),
        "key": shape(("id", 23), ("v", 25), key="v"),
    }
    for after in changes.values():
        assert refused("evolve", before, after) == ""
        assert refused("pause-table", before, after) == "postgres.schema_paused"
        assert refused("halt", before, after) == "postgres.schema_changed"
    assert refused("halt", before, before) == ""
    assert refused("halt", before, changes["add"], TableFilters(column_exclude=("public.t.n",))) == ""


def test_a_shape_is_its_columns_and_its_key_whatever_the_server_logs_of_old_rows():
    columns = ("id", 23), ("n", 23)
    before, full = shape(*columns), shape(*columns, identity="f")
    assert refused("halt", before, full) == refused("halt", full, before) == ""
    assert refused("halt", full, shape(*columns, key="id n", identity="f")) == "postgres.schema_changed"
    assert refused("halt", full, shape(*columns, key="", identity="f")) == "postgres.schema_changed"


def test_a_stored_fingerprint_of_an_earlier_form_counts_once_more():
    columns = ("id", 23), ("n", 23)
    former = former_fingerprint(shape(*columns), TableFilters())
    with pytest.raises(CdcError, match="columns or key"):
        guarded("halt", {"public.t": former}, shape(*columns, ("more", 23)))
    guard = guarded("halt", {"public.t": former}, shape(*columns))
    assert guard.to_json()["public.t"] != former
    with pytest.raises(CdcError, match="columns or key"):
        guarded("halt", guard.to_json(), shape(*columns, key="n"))
