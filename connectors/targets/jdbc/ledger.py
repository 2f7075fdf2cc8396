"""What a database has taken, in tables of its own beside the rows: offsets by partition, changed in the transaction of the rows.

- An offset is that of the Kafka topic's id: a topic that is created again begins anew.
- Each row has the epoch of its owner. It is locked and compared in every transaction, so a former owner writes nothing.
- Records that the database refused before the offset are noted too. They come again after a crash, and are set aside again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from cdcworker.connectors.api.record_target import TargetRecord
from cdcworker.connectors.record_sink.errors import SINK_FENCED
from cdcworker.connectors.warehouses.sql.connection import SqlConnection
from cdcworker.schemas.errors import CdcError

SCHEMA: Final = "_cdcworker"
_HERE: Final = "connector = %s and topic_id = %s and partition_number = %s"


State = Literal["new", "taken", "refused"]


class Partition(NamedTuple):
    """A partition by the id of its topic."""

    topic_id: str
    number: int


def partition_of(record: TargetRecord) -> Partition:
    """Returns the partition that a record was read from, whatever its topic is called now."""
    topic_id, number, _ = record.id.rsplit("-", 2)
    return Partition(topic_id, int(number))


@dataclass(frozen=True, slots=True)
class LedgerSql:
    """How a server's statements differ."""

    ddl: tuple[str, ...]
    insert: str
    """What stands for INSERT where a row that is there stays."""
    unless_there: str
    """What stands behind such an INSERT."""
    for_share: str


@dataclass(slots=True)
class Taken:
    """What is known of a partition: the next offset that is new, and which ones before it were refused."""

    next_offset: int
    refused: frozenset[int]


class RecordLedger:
    """The ledger of one connector. The caller owns the transactions; each connection has a ledger of its own."""

    def __init__(self, connector: str, epoch: tuple[int, int], sql: LedgerSql) -> None:
        self._connector = connector
        self._epoch = epoch
        self._sql = sql
        self._taken: dict[Partition, Taken] = {}
        self._begun: set[Partition] = set()
        self._refused: set[tuple[Partition, int]] = set()

    def forget(self) -> None:
        """What was read may be wrong: a transaction has failed, or nobody knows whether it has."""
        self._taken.clear()

    def unclaimed(self, places: Iterable[Partition]) -> list[Partition]:
        """Returns those of the partitions that this owner has not claimed yet."""
        return [place for place in places if place not in self._taken]

    def claim(self, connection: SqlConnection, place: Partition, first: int, topic: str) -> None:
        """Makes a partition this owner's: from here on former ones write nothing of it. CdcError `sink.fenced` where a newer owner
        has it. `first`: the first time, what is noted of records before it is of no use any more."""
        sql, here = self._sql, (self._connector, *place)
        connection.do(
            f"{sql.insert} into {SCHEMA}.record_ledger (connector, topic_id, partition_number, topic, next_offset, task_epoch, attempt)"
            f" values (%s, %s, %s, %s, 0, %s, %s){sql.unless_there}",
            (*here, topic, *self._epoch),
        )
        found = connection.one(self._read(" for update"), here)
        if found is None or tuple(found[1:]) > self._epoch:
            raise self._fenced(place)
        connection.do(
            f"update {SCHEMA}.record_ledger set task_epoch = %s, attempt = %s, topic = %s where {_HERE}",
            (*self._epoch, topic, *here),
        )
        if place not in self._begun:
            # The first record of a task is that behind Kafka's offset. Later ones may be before it.
            connection.do(f"delete from {SCHEMA}.record_refused where {_HERE} and record_offset < %s", (*here, first))
        refused = connection.ask(f"select record_offset from {SCHEMA}.record_refused where {_HERE}", here)
        self._begun.add(place)
        self._taken[place] = Taken(int(found[0]), frozenset(int(row[0]) for row in refused))

    def state(self, place: Partition, offset: int) -> State:
        """Returns what has become of a record of a claimed partition."""
        taken = self._taken[place]
        if offset in taken.refused:
            return "refused"
        return "new" if offset >= taken.next_offset else "taken"

    def lock(self, connection: SqlConnection, places: Iterable[Partition]) -> None:
        """Locks the rows of partitions until the transaction ends. CdcError `sink.fenced` where they are another owner's now."""
        for place in sorted(places):
            found = connection.one(self._read(" for update"), (self._connector, *place))
            if found is None or tuple(found[1:]) != self._epoch or int(found[0]) != self._taken[place].next_offset:
                raise self._fenced(place)

    def advance(self, connection: SqlConnection, ends: Mapping[Partition, int]) -> None:
        """Notes that partitions are taken up to these offsets, and what was refused before them."""
        for place, offset in sorted(self._refused):
            if place in ends:
                connection.do(
                    f"{self._sql.insert} into {SCHEMA}.record_refused (connector, topic_id, partition_number, record_offset)"
                    f" values (%s, %s, %s, %s){self._sql.unless_there}",
                    (self._connector, *place, offset),
                )
        for place, end in sorted(ends.items()):
            connection.do(
                f"update {SCHEMA}.record_ledger set next_offset = %s where {_HERE} and next_offset < %s",
                (end, self._connector, *place, end),
            )

    def advanced(self, ends: Mapping[Partition, int]) -> None:
        """The transaction is committed."""
        self._refused = {(place, offset) for place, offset in self._refused if place not in ends}
        for place, end in ends.items():
            taken = self._taken[place]
            taken.next_offset = max(end, taken.next_offset)

    def refuse(self, place: Partition, offset: int) -> None:
        """Notes that a record was refused, which stays out when later ones are written."""
        self._refused.add((place, offset))

    # Truncates

    def floor(self, connection: SqlConnection, table: str, *, alone: bool) -> bytes | None:
        """Returns the position of a table's last TRUNCATE, which no other transaction moves until this one ends; `alone`: and none reads."""
        row = (self._connector, table)
        sql = self._sql
        statement = f"select position from {SCHEMA}.record_floor where connector = %s and table_name = %s"
        found = connection.one(statement + (" for update" if alone else sql.for_share), row)
        if found is None:
            connection.do(
                f"{sql.insert} into {SCHEMA}.record_floor (connector, table_name, position) values (%s, %s, null){sql.unless_there}",
                row,
            )
            found = connection.one(statement + (" for update" if alone else sql.for_share), row)
        return None if found is None or found[0] is None else bytes(found[0])

    def raise_floor(self, connection: SqlConnection, table: str, position: bytes) -> None:
        connection.do(
            f"update {SCHEMA}.record_floor set position = %s where connector = %s and table_name = %s",
            (position, self._connector, table),
        )

    # A person's changes

    def partitions(self, connection: SqlConnection) -> list[Partition]:
        """Returns the partitions of which something was taken."""
        statement = f"select topic_id, partition_number from {SCHEMA}.record_ledger where connector = %s"
        return [Partition(str(row[0]), int(row[1])) for row in connection.ask(statement, (self._connector,))]

    def alter(self, connection: SqlConnection, changes: Mapping[Partition, int]) -> None:
        """Sets the next offsets of partitions, which are nobody's after that. CdcError `sink.fenced` where a newer owner has one."""
        for place, offset in sorted(changes.items()):
            here = (self._connector, *place)
            found = connection.one(self._read(" for update"), here)
            if found is not None and tuple(found[1:]) > self._epoch:
                raise self._fenced(place)
            connection.do(
                f"update {SCHEMA}.record_ledger set next_offset = %s, task_epoch = %s, attempt = %s where {_HERE}",
                (offset, *self._epoch, *here),
            )
            connection.do(f"delete from {SCHEMA}.record_refused where {_HERE}", here)

    def _read(self, lock: str) -> str:
        return f"select next_offset, task_epoch, attempt from {SCHEMA}.record_ledger where {_HERE}{lock}"

    @staticmethod
    def _fenced(place: Partition) -> CdcError:
        return CdcError(SINK_FENCED, "another owner writes this partition", where={"partition": place.number})


def ends_of(records: Sequence[TargetRecord]) -> dict[Partition, int]:
    """Returns where the partitions of records stand once these are written."""
    out: dict[Partition, int] = {}
    for record in records:
        out[partition_of(record)] = record.offset + 1
    return out


def firsts_of(records: Sequence[TargetRecord]) -> dict[Partition, Any]:
    """Returns the first record of each partition."""
    out: dict[Partition, Any] = {}
    for record in records:
        out.setdefault(partition_of(record), record)
    return out
