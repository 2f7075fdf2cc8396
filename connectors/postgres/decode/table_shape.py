"""The shape of a table that `schema.change.policy` compares, from its plan."""

from __future__ import annotations

from cdcworker.connectors.capture.config.filters import TableFilters
from cdcworker.connectors.capture.tables.schema_guard import SchemaGuard, Shape, fingerprint
from cdcworker.connectors.postgres.decode.table_plan import TableDecodePlan
from cdcworker.connectors.postgres.pgoutput import Relation


def check_shape(guard: SchemaGuard | None, filters: TableFilters, plan: TableDecodePlan) -> None:
    """CdcError when the policy does not allow the shape that the table has now."""
    if guard is not None and guard.compares:
        guard.check(".".join(plan.table.path), shape_of(plan, filters), lambda: former_fingerprint(plan, filters))


def shape_of(plan: TableDecodePlan, filters: TableFilters) -> Shape:
    """Name, type and length of each captured column, and the key. What the server logs of old rows (the replica identity) is
    no part of it."""
    relation, key = plan.relation, sorted(column.name for column in plan.table.key_columns)
    taken = [
        [c.name, c.type_oid, c.typmod] for c in relation.columns if c.name in key or _taken(relation, c.name, filters)
    ]
    return [relation.oid, taken, key]


def former_fingerprint(plan: TableDecodePlan, filters: TableFilters) -> str:
    """The fingerprint that earlier versions have stored."""
    relation = plan.relation
    taken = [c for c in relation.columns if c.in_key or _taken(relation, c.name, filters)]
    return fingerprint([relation.oid, relation.identity, [list(column) for column in taken]])


def _taken(relation: Relation, column: str, filters: TableFilters) -> bool:
    return filters.column(relation.schema, relation.table, column)
