"""Tables of MariaDB for tests that kill the source's process, and a witness: a replica of the server, whose triggers write down each row
that it applies, with the transaction that the row came in.
"""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

from cdcworker.connectors.mysql.gtid.mariadb import MariaDbPosition
from cdcworker.schemas.change import JsonObject

from tests.contract.source_crashes import DEADLINE_S, CrashStage, Told
from tests.waiting import pause

from .logged import LoggedServer
from .source.reading import config_of

PARTED = ("mysql.part_read", "source.half_produced")
"""Met by transactions of which one poll takes a part only."""
LARGE_EVERY_S = 10.0
WITNESS = {"server-id": "8", "gtid-domain-id": "9", "slave-run-triggers-for-rbr": "YES", "skip-slave-start": ""}
UNLOCKED = "set session transaction isolation level read committed"
"""Rows that are taken back leave no lock on the gap in which others insert theirs."""
_TOLD = "concat(@@gtid_domain_id, '-', @@server_id, '-', @@gtid_seq_no)"
_WRITE = "insert into witness.told(gtid, name, op, id, v, big) values"


def replicate(primary: LoggedServer, replica: LoggedServer) -> None:
    """Has a server follow another one, from its beginning on."""
    replica.ask(
        f"change master to master_host='127.0.0.1', master_port={primary.port}, master_user='cdc',"
        f" master_password='{primary.password}', master_use_gtid=slave_pos, master_ssl=0, master_ssl_verify_server_cert=0",
        "start slave",
    )


def wait_for_replica(primary: LoggedServer, replica: LoggedServer) -> None:
    """Waits until all that the primary has logged is applied."""
    wanted, began = primary.position(), time.monotonic()
    while not MariaDbPosition.parse(str(replica.ask("select @@gtid_slave_pos")[0][0])).contains(wanted):
        assert time.monotonic() < began + DEADLINE_S, replica.ask("show all slaves status")
        pause(began)


class MariaDbStage(CrashStage):
    """The database `shop` of a server that another one follows. Rows have large values and keys that change."""

    def __init__(
        self,
        bootstrap: str,
        servers: tuple[LoggedServer, LoggedServer],
        rng: random.Random,
        state_dir: Path,
        delivery: str,
    ) -> None:
        super().__init__(bootstrap, rng, state_dir, delivery)
        self.primary, self._replica = servers
        self._large_at = 0.0
        self.tables = self.kept = ("t", "u")
        self._below = 0
        """Rows with lower keys are not those of a transaction that is open."""
        self.primary.ask("drop database if exists shop", "create database shop")
        self.db = self.primary.connect()
        self._db_do("use shop", UNLOCKED)
        for table in self.tables:
            self._db_do(f"create table {table}(id int primary key, v varchar(2000), big longtext)")
        self._db_do("create table emptied(n int auto_increment primary key, name varchar(20))")
        self.begin_witness()

    def begin_witness(self) -> None:
        """What is committed from now on is compared."""
        wait_for_replica(self.primary, self._replica)
        dropped = [f"drop trigger if exists shop.{table}_{op}" for table in self.tables for op in "cdu"]
        self._replica.ask(
            *dropped, "drop trigger if exists shop.emptied_",
            "create or replace database witness", "use witness",
            "create table told(n bigint auto_increment primary key, gtid varchar(60), name varchar(20), op char(1), id int, v text, big longtext)",
            "use shop", *(statement for table in self.tables for statement in _triggers(table)),
            # A truncate runs no trigger: the row before it says which table it is of.
            f"create trigger emptied_ after insert on emptied for each row {_WRITE}"
            " (concat(@@gtid_domain_id, '-', @@server_id, '-', @@gtid_seq_no + 1), new.name, 't', null, null, null)",
        )  # fmt: skip

    def close(self) -> None:
        super().close()
        self.db.close()

    def config(self) -> dict[str, str]:
        return config_of(self.primary, table__include__list=",".join(f"shop.{table}" for table in self.tables))

    def end(self) -> MariaDbPosition:
        return self.primary.position()

    def is_behind(self, position: JsonObject, place: Any) -> bool:
        return MariaDbPosition.parse(position["gtids"]).contains(place)

    def place_of(self, table: str) -> str:
        return f"shop.{table}"

    def witnessed_all(self) -> list[tuple[str, Told]]:
        wait_for_replica(self.primary, self._replica)
        rows = self._replica.ask("select name, gtid, op, id, v, big from witness.told order by n")
        return [(str(name), (gtid, op, id, v, big)) for name, gtid, op, id, v, big in rows]  # type: ignore[misc]

    # -- what is written ----------------------------------------------------------------------------------------------

    def insert(self, count: int) -> None:
        self._db_do("begin", *self._rows(count), "commit")

    def _insert_more_than_a_batch(self) -> None:
        self._db_do("begin", *self._rows(3000, width=1000), "commit")
        self._large_at = time.monotonic()

    def go_on(self, point: str = "") -> None:
        """What came before a large transaction may have left room for the whole of it."""
        if point in PARTED and time.monotonic() > self._large_at + LARGE_EVERY_S:
            self._insert_more_than_a_batch()
        super().go_on(point)

    def work(self, shape: int, point: str = "") -> MariaDbPosition:
        if shape % 4 == 3 or point == "source.schema_written":
            for table in self.tables:
                self._db_do(f"alter table {table} add column c{shape} int")
        if point in PARTED:
            self._insert_more_than_a_batch()
        with self.primary.connect() as large, large.cursor() as cursor:
            taken_back = ["rollback to savepoint s"] if self.rng.random() < 0.5 else []
            # A row that is there keeps the gaps before it from those behind it.
            self._below = self.next_id
            self.insert(1)
            begun = ["use shop", UNLOCKED, "begin", *self._rows(800), "savepoint s", *self._rows(350), *taken_back]
            for statement in (*begun, *self._besides()):
                cursor.execute(statement)
            for _ in range(self.rng.randrange(2, 6)):
                self._db_do(*self._small())
            cursor.execute("commit")
        self.alone()
        self.insert(1)
        return self.end()

    def _small(self) -> list[str]:
        # By their keys, one by one: a scan would wait for the rows of the transaction that is open.
        rng, changed = self.rng, []
        for table in self.tables:
            *touched, gone = (rng.randrange(self._below) for _ in range(8))
            changed += [f"update {table} set v = concat(v, '.') where id = {number}" for number in touched]
            changed.append(f"delete from {table} where id = {gone}")
        end = "rollback" if rng.random() < 0.2 else "commit"
        return ["begin", *self._rows(rng.randrange(1, 20)), *self._besides(), *changed, end]

    def _besides(self) -> list[str]:
        """What else a transaction does: keys that change, large values that stay, savepoints that are taken back; on rows of its own."""
        out = []
        for taken_back in (False, self.rng.random() < 0.6):
            first, self.next_id = self.next_id, self.next_id + 10
            out.append("savepoint back")
            for table in self.tables:
                out += self._changed(table, first)
            out += ["rollback to savepoint back"] if taken_back else []
        return out

    def _changed(self, table: str, first: int) -> list[str]:
        moves = ((1, 5, "v = 'moved'"), (2, 6, "big = repeat('z', 3000)"), (3, 7, "big = null"))
        return [
            f"insert into {table}(id, v, big) select seq, 'v', concat(repeat('y', 3000), seq) from seq_{first}_to_{first + 3}",
            *(f"update {table} set v = 'w' where id = {first + new}" for new in (0, 1)),
            *(
                f"update {table} set id = {first + new}, {change} where id = {first + old}"
                for old, new, change in moves
            ),
            f"delete from {table} where id = {first + self.rng.choice((0, 5, 7))}",
        ]

    def alone(self) -> None:
        """What is done while no other transaction is open: a truncate keeps all others out."""
        for names in ([self.rng.choice(self.tables)], self.tables):
            self.insert(3)
            for name in names:
                self._db_do(f"insert into emptied(name) values ('{name}')", f"truncate table {name}")
            self._db_do("begin", *self._besides(), "commit")

    def _rows(self, count: int, width: int = 40) -> list[str]:
        first, self.next_id = self.next_id, self.next_id + count
        rows = f"select seq, concat(repeat('x', {width}), seq) from seq_{first}_to_{first + count - 1}"
        return [f"insert into {table}(id, v) {rows}" for table in self.tables]

    def _db_do(self, *statements: str) -> None:
        with self.db.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)


def _triggers(table: str) -> list[str]:
    new, gone = "new.id, new.v, new.big", "old.id, null, null"
    moved = f"({_TOLD}, '{table}', 'd', {gone}), ({_TOLD}, '{table}', 'c', {new})"
    return [
        f"create trigger {table}_c after insert on {table} for each row {_WRITE} ({_TOLD}, '{table}', 'c', {new})",
        f"create trigger {table}_d after delete on {table} for each row {_WRITE} ({_TOLD}, '{table}', 'd', {gone})",
        f"create trigger {table}_u after update on {table} for each row if old.id = new.id then {_WRITE}"
        f" ({_TOLD}, '{table}', 'u', {new}); else {_WRITE} {moved}; end if",
    ]
