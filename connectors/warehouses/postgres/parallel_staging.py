"""Large tables of a batch into PostgreSQL's stage tables over several connections at once: from threads of the driver, or
from executors of a cluster.

Each attempt of a part writes a table of its own in one transaction, and only those whose names came back are merged: an
attempt that was lost after it had written, or that ran beside another one, is nobody's. Names hold the epoch and the batch;
what is left over goes when a task starts, and now and then.
"""

from __future__ import annotations

import hashlib
import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from cdcworker.connectors.warehouses.postgres import copy, statements
from cdcworker.connectors.warehouses.postgres.connection import judged, opened
from cdcworker.connectors.warehouses.postgres.ledger import PostgresLedger
from cdcworker.connectors.warehouses.sql.ledger import Epoch
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.threads import thread_pool

if TYPE_CHECKING:
    import pyarrow as pa
    from cdcworker.connectors.warehouses.postgres.client import Connection
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

PREFIX = "stage_"
LOCK_TIMEOUT = "set lock_timeout = '200ms'"
"""An attempt that still writes keeps its table, which goes another time."""
RESTING = 100
"""After a failure so many large tables are staged by the driver alone."""


@dataclass(frozen=True, slots=True)
class StagingPart:
    """Rows of a table for one connection: as Arrow's stream, since a slice would be pickled with all it is cut from."""

    prefix: str
    target: statements.TargetTable
    keep_key: bool
    unchanged: Mapping[str, Any]
    rows: bytes = b""
    origins: bytes | None = None


Write = Callable[[StagingPart], str]
Run = Callable[[Write, Sequence[StagingPart]], list[str]]
"""Calls a function for each part, somewhere, maybe more than once; one answer for each."""


def in_threads(count: int) -> Run:
    """COPY's text is made, sent and read without Python's lock: in the driver threads do what tasks would."""

    def run(write: Write, parts: Sequence[StagingPart]) -> list[str]:
        with thread_pool(count, "stage") as pool:
            return list(pool.map(write, parts))

    return run


def in_executors(session: Callable[[], SparkSession]) -> Run:
    """The function goes with its arguments into the tasks: what is secret in them travels as Spark's connections do."""

    def run(write: Write, parts: Sequence[StagingPart]) -> list[str]:
        found: list[str] = session().sparkContext.parallelize(parts, len(parts)).map(write).collect()
        return found

    return run


@dataclass(frozen=True, slots=True)
class StagingPlan:
    """`count` connections at a time; tables below `min_bytes` are left to the driver's own, with 0 all of them."""

    count: int = 1
    min_bytes: int = 0
    run: Run | None = None
    """None: in executors, once there is a session."""


class PartNotWritten(Exception):
    """A part could not be written; the text says how, and has nothing of a row: Spark logs it, wherever the part was."""


class ParallelStaging:
    """Stages the large tables of one task's batches over several connections."""

    def __init__(self, conninfo: str, ledger: PostgresLedger, plan: StagingPlan) -> None:
        self._conninfo = conninfo
        self._ledger = ledger
        self._plan = plan
        self._run = plan.run
        self._resting = 0
        self._made: list[str] = []

    def attach(self, session: Callable[[], SparkSession]) -> None:
        self._run = self._plan.run or in_executors(session)

    def wants(self, rows: pa.Table) -> bool:
        plan = self._plan
        if not 0 < plan.min_bytes <= rows.nbytes or self._run is None:
            return False
        self._resting = max(0, self._resting - 1)
        return not self._resting

    def stage(
        self, connection: Connection, part: StagingPart, rows: pa.Table, origins: pa.Table | None, batch: int
    ) -> str | None:
        """The rows in a table of `connection`'s transaction, in SQL; None: they could not be staged, and it is as before."""
        epoch = self._ledger.epoch
        part = replace(part, prefix=f"{family(self._ledger)}{epoch[0]:x}_{epoch[1]:x}_{batch:x}_")
        parts = list(cut(part, rows, origins, self._plan.count))
        assert self._run is not None
        try:
            names = self._run(partial(write, judged(self._conninfo)), parts)
        except Exception as exc:  # noqa: BLE001 - psycopg's, Spark's, and what executors lack; the driver's own try tells
            said = str(exc) if isinstance(exc, PartNotWritten) else type(exc).__name__
            log.warning("parallel staging failed, the driver stages the table alone error=%s", said)
            self._resting = RESTING
            return None
        whole = quoted_table(own_name(part.prefix))
        connection.execute(statements.stage_table(part.target, whole))
        self._made.append(whole)
        for name in names:
            connection.execute(statements.inherit(quoted_table(name), whole))
        return whole

    def drop(self, connection: Connection) -> None:
        """Drops the staging tables that were merged, in the transaction that merged them."""
        for name in self._made:
            connection.execute(statements.drop(name))
        self._made.clear()


def family(ledger: PostgresLedger) -> str:
    """Returns the prefix of the names of a task's staging tables."""
    place = f"{ledger.sink}\0{ledger.task}".encode()
    return f"{PREFIX}{hashlib.sha256(place).hexdigest()[:12]}_"


def sweep(connection: Connection, ledger: PostgresLedger) -> None:
    """Drop what batches and attempts of the task left; while no batch is applied all of it is nobody's, but for what a
    newer owner has made."""
    import psycopg

    found = connection.execute(
        """select c.relname from pg_class c where c.relnamespace = to_regnamespace('_cdcworker')
           and c.relkind = 'r' and starts_with(c.relname, %s)""",
        (family(ledger),),
    ).fetchall()
    if not found:
        return
    connection.execute(LOCK_TIMEOUT)
    try:
        for (name,) in found:
            if epoch_of(name) > ledger.epoch:
                continue
            try:
                connection.execute(statements.drop(quoted_table(name)))
            except (psycopg.errors.LockNotAvailable, psycopg.errors.InsufficientPrivilege) as exc:
                # Still written to, or another role's, from before warehouse.user was changed.
                log.info("a staging table could not be dropped table=%s cause=%s", name, type(exc).__name__)
    finally:
        connection.execute("reset lock_timeout")


def epoch_of(name: str) -> Epoch:
    """Returns the epoch of the task that created a staging table."""
    first, second = name.removeprefix(PREFIX).split("_")[1:3]
    return int(first, 16), int(second, 16)


# -- one part -----------------------------------------------------------------------------------------------------------


def cut(part: StagingPart, rows: pa.Table, origins: pa.Table | None, count: int) -> Iterator[StagingPart]:
    """`part` says what all of them have in common, with the flags of all rows."""
    import numpy as np

    size = -(-rows.num_rows // count)
    for start in range(0, rows.num_rows, size):
        flags = {name: np.asarray(found, np.bool_)[start : start + size] for name, found in part.unchanged.items()}
        beside = None if origins is None else _packed(origins.slice(start, size))
        yield replace(part, rows=_packed(rows.slice(start, size)), unchanged=flags, origins=beside)


def write(conninfo: str, part: StagingPart) -> str:
    """Anywhere: into a table that nobody else knows, which is there whole or not at all."""
    import psycopg

    try:
        return _write(conninfo, part)
    except (CdcError, ImportError):
        raise
    except psycopg.Error as exc:
        raise PartNotWritten(f"{type(exc).__name__} {exc.sqlstate}") from None
    except Exception as exc:  # noqa: BLE001 - what Arrow says of a value holds it
        raise PartNotWritten(type(exc).__name__) from None


def _write(conninfo: str, part: StagingPart) -> str:
    import pyarrow as pa

    rows = pa.ipc.open_stream(part.rows).read_all()
    origins = None if part.origins is None else pa.ipc.open_stream(part.origins).read_all()
    columns = copy.columns_of(part.target, rows, part.unchanged, origins, part.keep_key)
    name = own_name(part.prefix)
    with opened(conninfo) as connection, connection.transaction():
        connection.execute(statements.stage_table(part.target, quoted_table(name)))
        copy.copy(connection, quoted_table(name), columns)
    return name


def _packed(rows: pa.Table) -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def own_name(prefix: str) -> str:
    return prefix + uuid.uuid4().hex[:12]


def quoted_table(name: str) -> str:
    """Returns a staging table's name in SQL."""
    return f"_cdcworker.{statements.quote(name)}"
