"""The loads W1 to W9: what stands in the log before every contender reads it, and what must then be in the topics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from .latency import latency
from .postgres import NAP_US, PostgresStage, discard, drained
from .server import RATE
from .stage import Work

Head = tuple[str, int]
"""What the head of a record says: `c`, `u` (a row of version 0 or 1, nothing before), `b` (a row before), `-` (no value), and the key."""

COLUMNS: Final = "id bigint primary key, v int not null, name text, price numeric(10,2), at timestamptz not null"
ROW: Final = "i, 0, 'name of row ' || i, (i % 100000) / 100.0, now()"
LARGE: Final = "id bigint primary key, v int not null, body text"
LARGE_ROW: Final = "i, 0, (select string_agg(md5(i::text || n), '') from generate_series(1, 128) n)"
MANY: Final = tuple(f"w6_{number}" for number in range(100))
BLOCK: Final = {"c": (1, 60), "u": (1, 30), "b": (51, 60)}
"""A hundred events of one table: rows that are inserted, changed, deleted."""


def steps(body: str, per: int, rows: str = "{rows}") -> str:
    """One transaction for each `per` of the rows from `low` to `high`."""
    loop = f"for low in 1..{rows} by {per} loop high := least(low + {per - 1}, {rows}); {body}; commit; end loop"
    return f"do $$ declare high bigint; begin {loop}; end $$"


def insert(table: str, row: str = ROW) -> str:
    return f"insert into {table} select {row} from generate_series(low, high) i"


@dataclass(frozen=True)
class Workload:
    """`before` stands there when the slot begins; `load` is what every contender reads. `{rows}` stands for its events."""

    name: str
    says: str
    rows: int
    load: tuple[str, ...]
    before: str = ""
    columns: str = COLUMNS
    alter: str = ""
    tables: tuple[str, ...] = ()
    heads: Callable[[int], Iterator[Head]] = field(default=lambda rows: one_each("c", rows))
    """What each of its topics must hold of so many events, in order."""

    @property
    def names(self) -> tuple[str, ...]:
        return self.tables or (self.name,)

    def options(self) -> dict[str, str]:
        return {"table.include.list": ",".join(f"public.{table}" for table in self.names)}


def one_each(kind: str, rows: int) -> Iterator[Head]:
    return ((kind, number) for number in range(1, rows + 1))


def halves(rows: int) -> Iterator[Head]:
    yield from one_each("c", rows // 2)
    yield from one_each("u", rows // 2)


def mixed(rows: int) -> Iterator[Head]:
    """A deleted row is followed by a record without a value."""
    for block in range(rows // (100 * len(MANY))):
        for kind, (low, high) in BLOCK.items():
            for number in range(60 * block + low, 60 * block + high + 1):
                yield kind, number
                if kind == "b":
                    yield "-", number


def _mixed_load() -> str:
    """Ten tables in each transaction, a hundred events each."""
    row = ROW.replace("i,", "$1 + i,", 1).replace("'", "''")
    insert_rows = f"execute 'insert into ' || name || ' select {row} from generate_series(1, 60) i' using base"
    update_rows = "execute 'update ' || name || ' set v = 1 where id between $1 + 1 and $1 + 30' using base"
    delete_rows = "execute 'delete from ' || name || ' where id between $1 + 51 and $1 + 60' using base"
    return (
        "do $$ declare name text; base bigint; begin for number in 0..{rows} / 100 - 1 loop"
        " name := 'w6_' || (number % 100); base := 60 * (number / 100);"
        f" {insert_rows}; {update_rows}; {delete_rows};"
        " if number % 10 = 9 then commit; end if; end loop; end $$"
    )


def _updated(table: str, per: int) -> str:
    return steps(f"update {table} set v = 1 where id between low and high", per)


WORKLOADS: Final = {
    one.name: one
    for one in (
        Workload("w1", "inserts, 1,000 in a transaction", 1_000_000, (steps(insert("w1"), 1000),)),
        Workload(
            "w2", "updates, 1,000 in a transaction", 1_000_000, (_updated("w2", 1000),), steps(insert("w2"), 100_000),
            heads=lambda rows: one_each("u", rows),
        ),
        Workload("w3", "transactions of one row", 300_000, (steps(insert("w3"), 1),)),
        Workload(
            "w4", "updates with whole old rows", 300_000, (_updated("w4", 1000),), steps(insert("w4"), 100_000),
            alter="alter table w4 replica identity full", heads=lambda rows: one_each("b", rows),
        ),
        Workload("w5", "one transaction", 1_000_000, (f"insert into w5 select {ROW} from generate_series(1, {{rows}}) i",)),
        Workload("w6", "60/30/10 inserts, updates, deletes in 100 tables", 1_000_000, (_mixed_load(),), tables=MANY, heads=mixed),
        Workload(
            "w7", "rows of 4 KiB, half of them updates that leave TOAST out", 100_000,
            (steps(insert("w7", LARGE_ROW), 100, "{rows} / 2"),
             steps("update w7 set v = 1 where id between low and high", 100, "{rows} / 2")),
            columns=LARGE, alter="alter table w7 alter column body set storage external", heads=halves,
        ),
    )
}  # fmt: skip
PACED: Final = (1_000, 10_000, 50_000)
PACED_S: Final = 60
SNAPSHOT_ROWS: Final = 5_000_000
NAMES: Final = (*WORKLOADS, "w8", "w9")


def prepare(stage: PostgresStage, one: Workload, rows: int) -> None:
    """Tables, publication, and a slot in front of the load that is copied for every contender."""
    with stage.server.connect() as connection:
        connection.execute("set synchronous_commit = off")
        for table in one.names:
            connection.execute(f"create table {table} ({one.columns})")
        connection.execute(f"create publication p_{one.name} for table {', '.join(one.names)}")
        if one.alter:
            connection.execute(one.alter)
        if one.before:
            connection.execute(one.before.format(rows=rows))
            connection.execute(f"analyze {one.name}")
        connection.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (f"base_{one.name}",))
        for statement in one.load:
            connection.execute(statement.format(rows=rows))
        connection.execute("checkpoint")
        stage.server.ends[one.name] = connection.execute("select pg_current_wal_insert_lsn()::text").fetchone()[0]  # type: ignore[index]
        stage.rows[one.name] = rows
        connection.execute("select pg_logical_emit_message(true, 'end', '')")


def run(stage: PostgresStage, name: str, scale: float, ways: dict[str, dict[str, str]]) -> dict[str, float]:
    """One workload once: printed, and its figures by names that end in its own."""
    if name == "w8":
        found = {key: value for rate in PACED for key, value in paced(stage, rate, scale).items()}
    elif name == "w9":
        found = snapshots(stage, int(SNAPSHOT_ROWS * scale))
    else:
        found = streamed(stage, WORKLOADS[name], scale, ways)
    says = WORKLOADS[name].says if name in WORKLOADS else "paced" if name == "w8" else "rows of a table"
    print(f"{name} ({says}): " + " ".join(f"{k}={v:,.2f}" for k, v in found.items()), flush=True)
    return found


def streamed(stage: PostgresStage, one: Workload, scale: float, ways: dict[str, dict[str, str]]) -> dict[str, float]:
    """Beside the line of the C program that naps."""
    rows = max(int(one.rows * scale) // 10_000, 1) * 10_000
    prepare(stage, one, rows)
    napping = discard(stage, one.name, NAP_US)
    records = sum(1 for _ in one.heads(rows)) * len(one.names)
    work = Work(one.name, rows, lambda: one.heads(rows), one.names, versions=True, records=records)
    figures = {f"discard_{one.name}": napping}
    for way, options in ways.items():
        found = drained(stage, work, f"{way}_{one.name}", {**one.options(), **options})
        figures[f"ratio_{way}_{one.name}"] = found["events_per_s"] / napping
        figures[f"events_per_s_{way}_{one.name}"] = found["events_per_s"]
        figures[f"cpu_us_per_event_{way}_{one.name}"] = found["cpu_us_per_event"]
    return figures


def paced(stage: PostgresStage, rate: int, scale: float) -> dict[str, float]:
    """So many rows a second in a thousand transactions."""
    found = latency(stage, max(int(PACED_S * scale), 5), rate // RATE, f"w8_{rate}")
    return {f"{name}_w8_{rate}": value for name, value in found.items()}


def snapshots(stage: PostgresStage, rows: int) -> dict[str, float]:
    """One table read by one connection and by two."""
    prepare(stage, Workload("w9", "", rows, (steps(insert("w9"), 10_000),)), rows)
    figures = {}
    for threads in (1, 2):
        options = {"snapshot.mode": "initial", "snapshot.max.threads": str(threads)}
        work = Work("w9", rows, lambda: iter(()), ordered=False)
        found = drained(stage, work, f"snapshot_w9_{threads}", options)
        figures[f"snapshot_rows_per_s_{threads}_connections"] = found["events_per_s"]
        figures[f"snapshot_cpu_us_per_row_{threads}_connections"] = found["cpu_us_per_event"]
    return figures
