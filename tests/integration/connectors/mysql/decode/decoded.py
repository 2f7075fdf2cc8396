"""What a real server's log becomes: its events go through the reader, the catalog and the decoder."""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import fastavro
from cdcworker.connectors.mysql.binlog.event_reader import Event, EventReader
from cdcworker.connectors.mysql.catalog.completion import TableCatalog
from cdcworker.connectors.mysql.catalog.tables import CatalogTable, read_table
from cdcworker.connectors.mysql.config.settings import MySqlSettings
from cdcworker.connectors.mysql.decode.captured_plans import CapturedPlans
from cdcworker.connectors.mysql.decode.commit_numbers import CommitNumbers
from cdcworker.connectors.mysql.decode.decoder import BinlogDecoder
from cdcworker.connectors.mysql.decode.row_writer import DecoderOptions
from cdcworker.connectors.mysql.decode.table_plan import TablePlanner
from cdcworker.connectors.mysql.server.connection import opened
from cdcworker.connectors.mysql.source_block import source_schema
from cdcworker.connectors.mysql.transport.commands import MariaDbStart, Reader
from cdcworker.schemas import avro
from cdcworker.schemas.change import Change
from cdcworker.schemas.envelope import change_value, key_schema, value_schema

from ..logged import LoggedServer, read_to_the_end
from ..server.test_checks import settings_of

SCHEMA = source_schema("mariadb")
TEMPLATE = {"version": "v", "connector": "mariadb", "name": "p", "snapshot": "false", "sequence": None}
READER = Reader(server_id=95, wait=False, statements=True)


@dataclass
class Log:
    """Raw events of a log, and what they are read with."""

    server: LoggedServer
    raw: list[bytes]
    checksum: Any
    settings: MySqlSettings
    numbers: CommitNumbers = field(default_factory=CommitNumbers)

    def plans(self, *, whole_rows: bool = True) -> CapturedPlans:
        catalog = TableCatalog(partial(read_now, self.settings), is_mariadb=True)
        return CapturedPlans(TablePlanner(self.settings, SCHEMA, catalog.table, whole_rows), catalog)

    def decoder(self, options: DecoderOptions | None = None, **more: Any) -> tuple[BinlogDecoder, list[Event]]:
        """A decoder that has read nothing, and the events for it."""
        plans = self.plans(**more)
        reader = EventReader(self.checksum, plans.complete)
        decoder = BinlogDecoder(plans, TEMPLATE, self.numbers, options)
        return decoder, [event for data in self.raw for event in reader.read(data)]

    def changes(self, options: DecoderOptions | None = None, **more: Any) -> list[Change]:
        """All changes, each of which has a valid record."""
        plans = self.plans(**more)
        reader = EventReader(self.checksum, plans.complete)
        decoder = BinlogDecoder(plans, TEMPLATE, self.numbers, options)
        for data in self.raw:
            for event in reader.read(data):
                decoder.feed(event)
        found = [change for change in decoder.out if isinstance(change, Change)]
        for change in found:
            check_record(change)
        return found


def read_now(settings: MySqlSettings, database: str, name: str) -> CatalogTable | None:
    """What the catalog has of a table."""
    with closing(opened(settings)) as connection:
        return read_table(connection, database, name, is_mariadb=True)


def check_record(change: Change) -> None:
    """Raises where a change is none of its table's schema."""
    if change.op == "m":
        return
    schema = fastavro.parse_schema(avro.without_logical_types(value_schema("p", change.table)))
    fastavro.schemaless_writer(io.BytesIO(), schema, change_value(change), strict=True)
    assert (key_schema("p", change.table) is None) is not bool(change.table.key)


def log_of(server: LoggedServer, *statements: str, **config: str) -> Log:
    """Executes statements over one connection; returns what the log holds of them."""
    server.ask("create database if not exists shop")
    start = MariaDbStart(server.position())
    server.ask("use shop", *statements)
    with server.stream(start, READER) as stream:
        return Log(server, read_to_the_end(stream), stream.checksum, settings_of(server, **config))


@contextmanager
def variable(server: LoggedServer, name: str, value: str):
    """A global variable of the server for a while."""
    ((before,),) = server.ask(f"select @@global.{name}")
    server.ask(f"set global {name} = {value}")
    try:
        yield
    finally:
        server.ask(f"set global {name} = '{before}'")


def brief(changes: Sequence[Change]) -> list[tuple[Any, ...]]:
    """Operation, old and new row of each."""
    return [(change.op, change.before, change.after) for change in changes]


def places(changes: Sequence[Change]) -> list[tuple[int, int]]:
    return [(change.position.event, change.position.part) for change in changes]
