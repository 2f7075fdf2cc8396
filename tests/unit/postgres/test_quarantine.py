"""Tables that are held back: what is remembered of them, and what takes them back."""

from __future__ import annotations

from typing import Any

import pytest
from cdcworker.connectors.postgres.catalog import TypeNames
from cdcworker.connectors.postgres.config import Filters, parse
from cdcworker.connectors.postgres.position import StoredPosition
from cdcworker.connectors.postgres.quarantine import Quarantine
from cdcworker.connectors.postgres.relations import Plan, Planner, build_plan
from cdcworker.connectors.postgres.shapes import ShapeGuard
from cdcworker.connectors.postgres.types import Modes, PgType
from cdcworker.connectors.postgres.wire import Relation, RelationColumn
from cdcworker.schemas.errors import CdcError

CONFIG = {
    "database.hostname": "h",
    "database.user": "u",
    "database.dbname": "d",
    "database.password": "secret",
    "topic.prefix": "p",
}
ERROR = CdcError("postgres.value_unsupported", "no form", where={"table": "public.t", "lsn": "0/1"})


def quarantine(stored: Any = None, jobs: Any = (), **config: str) -> Quarantine:
    return Quarantine(stored, parse(CONFIG | config), lambda: jobs)


def held(jobs: Any = ()) -> Any:
    one = quarantine(jobs=jobs)
    one.hold({"public.t": ERROR})
    return one.to_json()


def test_a_held_table_is_not_captured_and_stays_so():
    one = quarantine(held())
    one.lift()
    assert (list(one.held), one.lifted, one.changed, one.due) == (["public.t"], [], False, False)
    filters = one.applied(parse(CONFIG)).filters
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


def test_it_is_part_of_the_position():
    value = StoredPosition("1", 1, "s", 0, 0, 0, quarantine=held(), shapes={"public.t": "a"}).to_json()
    again = StoredPosition.from_json(value)
    assert (again.quarantine, again.shapes) == (held() | again.quarantine, {"public.t": "a"})
    assert "quarantine" not in StoredPosition("1", 1, "s", 0, 0, 0).to_json()


def shape(*columns: tuple[str, int], key: str = "id", identity: str = "d") -> Plan:
    marked = tuple(RelationColumn(n, oid, -1, identity == "f" or n in key.split()) for n, oid in columns)
    known = {oid: PgType(oid, name) for oid, name in ((20, "int8"), (23, "int4"), (25, "text"))}
    planner = Planner(None, Modes(), Filters())  # type: ignore[arg-type]
    return build_plan(Relation(1, "public", "t", identity, marked), None, TypeNames(known), key.split(), planner)


def refused(policy: str, before: Plan, after: Plan, filters: Filters | None = None) -> str:
    guard = ShapeGuard(policy, filters or Filters(), None)
    guard.check(before)
    try:
        ShapeGuard(policy, filters or Filters(), guard.to_json()).check(after)
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
    assert refused("halt", before, changes["add"], Filters(column_exclude=("public.t.n",))) == ""


def test_a_shape_is_its_columns_and_its_key_whatever_the_server_logs_of_old_rows():
    columns = ("id", 23), ("n", 23)
    before, full = shape(*columns), shape(*columns, identity="f")
    assert refused("halt", before, full) == refused("halt", full, before) == ""
    assert refused("halt", full, shape(*columns, key="id n", identity="f")) == "postgres.schema_changed"
    assert refused("halt", full, shape(*columns, key="", identity="f")) == "postgres.schema_changed"


def test_a_stored_fingerprint_of_an_earlier_form_counts_once_more():
    columns = ("id", 23), ("n", 23)
    former = ShapeGuard("halt", Filters(), None)._former(shape(*columns).relation)
    with pytest.raises(CdcError, match="columns or key"):
        ShapeGuard("halt", Filters(), {"public.t": former}).check(shape(*columns, ("more", 23)))
    guard = ShapeGuard("halt", Filters(), {"public.t": former})
    guard.check(shape(*columns))
    assert guard.to_json()["public.t"] != former
    with pytest.raises(CdcError, match="columns or key"):
        guard.check(shape(*columns, key="n"))
