"""Whether a warehouse of files or a lake holds what the workload sent: every column of every row, in whatever order."""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
from cdcworker.connectors.api.table_batch import OP, POSITION, UNCHANGED
from cdcworker.connectors.api.table_writer import TargetRows
from pyarrow import csv

from .load import COLUMNS, Workload, values

TYPES = {
    "id": pa.int64(),
    "customer": pa.int32(),
    "amount": pa.decimal128(10, 2),
    "quantity": pa.int32(),
    "active": pa.bool_(),
    "score": pa.float64(),
    "at": pa.timestamp("us", "UTC"),
}
SCHEMA = pa.schema([(column.name, TYPES.get(column.name, pa.string())) for column in COLUMNS])
CHANGE = 12
"""Bytes of a position that the parts of one change have in common."""


def expected(workload: Workload, at: int) -> pa.Table:
    rows = [values(at, id, state) for id, state in workload.rows[at].items()]
    columns = dict(zip(SCHEMA.names, map(list, zip(*rows, strict=True)), strict=True))
    columns["amount"] = [Decimal(int.from_bytes(cents, "big", signed=True)).scaleb(-2) for cents in columns["amount"]]
    columns["at"] = pa.array(columns["at"], pa.string()).cast(TYPES["at"])
    return pa.table(columns, schema=SCHEMA).select(workload.names)


def read(rows: TargetRows | None, *more: str, names: Sequence[str] = SCHEMA.names) -> pa.Table:
    if rows is None:
        sys.exit("a table is not there")
    names = [*names, *more]
    return pa.concat_tables([pa.Table.from_batches([batch]).select(names) for batch in rows.batches])


def replayed(changes: pa.Table) -> pa.Table:
    """The rows that a change log ends with. What a change did not bring comes from its row before: where the row changed its
    key, from the one that was deleted by the same change."""
    held: dict[int, Mapping[str, Any]] = {}
    gone: Mapping[str, Any] = {}
    for row in changes.sort_by(POSITION).to_pylist():
        if row[OP] == "d":
            gone = {**held.pop(row["id"]), POSITION: row[POSITION]}
            continue
        left = row[UNCHANGED].split(",") if row[UNCHANGED] else ()
        moved = gone and gone[POSITION][:CHANGE] == row[POSITION][:CHANGE]
        before = gone if moved else held.get(row["id"], {})
        held[row["id"]] = {**row, **{name: before[name] for name in left}}
    return pa.Table.from_pylist([{name: row[name] for name in SCHEMA.names} for row in held.values()], SCHEMA)


def check(found: pa.Table, workload: Workload, at: int, name: str) -> None:
    """Ends the benchmark where they differ."""
    wanted = expected(workload, at).sort_by("id")
    there = found.select(workload.names).cast(wanted.schema).sort_by("id")
    if there.equals(wanted):
        return
    if there["id"].equals(wanted["id"]):
        differ = [column for column in workload.names if not there[column].equals(wanted[column])]
        sys.exit(f"{name} differs from what was sent in {', '.join(differ)}")
    sys.exit(f"{name} has {there.num_rows} rows, or others, where {wanted.num_rows} were sent")


def parsed(text: bytes) -> pa.Table:
    """Returns rows of the workload, which are PostgreSQL's text, in Arrow's types: made before a clock runs."""
    plain = {**{field.name: field.type for field in SCHEMA}, "amount": pa.decimal128(10, 2)}
    return csv.read_csv(
        io.BytesIO(text),
        read_options=csv.ReadOptions(column_names=SCHEMA.names),
        convert_options=csv.ConvertOptions(column_types=plain, true_values=["True"], false_values=["False"]),
        parse_options=csv.ParseOptions(delimiter="\t"),
    )


def parsed_ids(text: bytes) -> pa.Table:
    """Returns the keys of deleted rows."""
    return pa.table({"id": pa.array([int(line) for line in text.split()], pa.int64())})
