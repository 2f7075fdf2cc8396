"""Writes batches of records into tables: rows and ledger in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from cdcworker.connectors import jdbc_url
from cdcworker.connectors.api.context import CheckFinding
from cdcworker.connectors.api.record_target import MessageBatch, RecordBatch, TargetPlace, TargetRecord, WrittenMessages
from cdcworker.connectors.config import tls_policy
from cdcworker.connectors.record_sink.errors import RECORD_REFUSED
from cdcworker.connectors.targets.jdbc.changes import ChangeReader, RowsStep, Step, TruncateStep, without_older
from cdcworker.connectors.targets.jdbc.column_reader import Unsuited
from cdcworker.connectors.targets.jdbc.database import Database
from cdcworker.connectors.targets.jdbc.errors import as_target_error
from cdcworker.connectors.targets.jdbc.ledger import Partition, RecordLedger, ends_of, firsts_of, partition_of
from cdcworker.connectors.targets.jdbc.rules import WriteRules, rules_of
from cdcworker.connectors.targets.jdbc.straight import StraightReader
from cdcworker.schemas.errors import CdcError

T = TypeVar("T")


def open_database(config: Mapping[str, Any], rules: WriteRules) -> Database:
    """Returns the database of a parsed config; nothing is connected to yet."""
    address = jdbc_url.parsed(config["connection.url"])
    mode = f"sslmode={address.sslmode}"
    tls_policy.check("connection.url", mode, tls_policy.level_of(address.sslmode), address.hosts)
    password = config["connection.password"]
    login = (config["connection.username"], password.reveal() if password else "")
    if address.kind == "postgres":
        from cdcworker.connectors.targets.jdbc.postgres import PostgresDatabase

        return PostgresDatabase(address, login, rules)
    from cdcworker.connectors.targets.jdbc.mysql import MySqlDatabase

    return MySqlDatabase(address, login, rules)


class JdbcTarget:
    """Tables of a database. A record is in them, and in the ledger, once or not at all."""

    def __init__(self, place: TargetPlace) -> None:
        self._rules = rules_of(place.config, place.connector_class)
        self._database = open_database(place.config, self._rules)
        self._ledger = RecordLedger(place.connector, place.epoch, self._database.ledger_sql)
        self._reader = ChangeReader(self._rules)
        self._straight = StraightReader(self._rules, self._reader)

    def write(self, batch: RecordBatch) -> None:
        records = batch.records
        try:
            self._guarded(lambda: self._written(records))
        except CdcError as error:
            if error.kind == "data" and len(records) == 1:
                self._ledger.refuse(partition_of(records[0]), records[0].offset)
            raise

    def write_messages(self, batch: MessageBatch) -> WrittenMessages | None:
        if not self._straight.is_suited:
            return None
        return self._guarded(lambda: self._straight_written(batch))

    def _straight_written(self, batch: MessageBatch) -> WrittenMessages | None:
        self._claim(_firsts(batch))
        try:
            found = self._straight.read(batch, self._is_new)
        except Unsuited:
            return None
        if found.ends:
            self._commit(found.steps, found.ends)
        return found.written

    def cancel(self) -> None:
        with suppress(Exception):  # the connection may be gone already
            self._database.cancel()

    def close(self) -> None:
        self._database.close()

    def check(self) -> Sequence[CheckFinding]:
        database = self._database
        try:
            database.check()
        except CdcError as error:
            return [_finding(as_target_error(error))]
        except database.failures as exc:
            return [_finding(as_target_error(database.explained(exc)))]
        finally:
            database.close()
        return []

    # One batch

    def _guarded(self, write: Callable[[], T]) -> T:
        """Writes a batch. Whatever goes wrong, the next try begins at what the ledger says."""
        database = self._database
        try:
            database.refresh()
            return write()
        except CdcError as exc:
            raise self._failed(exc) from exc
        except database.failures as exc:
            raise self._failed(database.explained(exc)) from exc
        except BaseException:
            self._ledger.forget()
            database.close()
            raise

    def _failed(self, error: CdcError) -> CdcError:
        self._ledger.forget()
        found = as_target_error(error)
        if found.kind == "transient":
            self._database.close()
        return found

    def _written(self, records: Sequence[TargetRecord]) -> None:
        self._claim({place: (first.offset, first.topic) for place, first in firsts_of(records).items()})
        fresh = [record for record in records if self._is_new(partition_of(record), record.offset)]
        if fresh:
            self._commit(self._reader.steps(fresh), ends_of(fresh))

    def _claim(self, firsts: Mapping[Partition, tuple[int, str]]) -> None:
        """Makes partitions that are new to this connection this owner's; of each the offset and the topic of the first record."""
        unclaimed = self._ledger.unclaimed(firsts)
        if not unclaimed:
            return
        connection = self._database.connection
        self._database.prepare_ledger(self._database.ledger_sql.ddl)
        with self._database.transaction():
            for place in sorted(unclaimed):
                self._ledger.claim(connection, place, *firsts[place])

    def _is_new(self, place: Partition, offset: int) -> bool:
        """Returns whether a record is not in the tables yet. CdcError for one that the database has refused before: what came behind
        it is there already."""
        state = self._ledger.state(place, offset)
        if state == "refused":
            raise CdcError(RECORD_REFUSED, "the database has refused the record before")
        return state == "new"

    def _commit(self, steps: Sequence[Step], ends: Mapping[Partition, int]) -> None:
        for step in steps:
            if isinstance(step, RowsStep):
                self._database.prepare(step.shape)
        with self._database.transaction():
            self._ledger.lock(self._database.connection, ends)
            self._apply(steps)
            self._ledger.advance(self._database.connection, ends)
        self._ledger.advanced(ends)

    def _apply(self, steps: Sequence[Step]) -> None:
        floors = self._floors(steps) if self._rules.position else {}
        column = self._rules.position
        for step in steps:
            name = ".".join(step.table if isinstance(step, TruncateStep) else step.shape.table)
            if isinstance(step, TruncateStep):
                self._database.empty(step.table, column, step.position)
                if step.position is not None and column:
                    floors[name] = max(step.position, floors.get(name) or b"")
                    self._ledger.raise_floor(self._database.connection, name, floors[name] or b"")
                continue
            floor = floors.get(name)
            if floor is not None and column in step.shape.names:
                step = without_older(step, step.shape.names.index(column), floor)
            self._database.write(step)

    def _floors(self, steps: Sequence[Step]) -> dict[str, bytes | None]:
        """Returns the position of each table's last TRUNCATE, and holds it where it is."""
        emptied = {".".join(step.table) for step in steps if isinstance(step, TruncateStep)}
        names = emptied | {".".join(step.shape.table) for step in steps if isinstance(step, RowsStep)}
        connection = self._database.connection
        return {name: self._ledger.floor(connection, name, alone=name in emptied) for name in sorted(names)}


def _firsts(batch: MessageBatch) -> dict[Partition, tuple[int, str]]:
    out: dict[Partition, tuple[int, str]] = {}
    for message, ids in zip(batch.messages, batch.ids, strict=True):
        place = Partition(ids, message.partition())
        if place not in out:
            out[place] = (message.offset(), message.topic())
    return out


def _finding(error: CdcError) -> CheckFinding:
    is_away = error.kind == "transient"
    return CheckFinding("connection.url", "warning" if is_away else "error", error.code, error.message, error.hint)
