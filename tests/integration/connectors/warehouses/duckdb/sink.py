"""A sink into a file of DuckDB whose dead letters are sent again."""

from __future__ import annotations

import time
from pathlib import Path

from cdcworker.connectors.warehouses.duckdb.connection import session
from cdcworker.connectors.warehouses.duckdb.redrive import DuckDbLetters
from cdcworker.connectors.warehouses.duckdb.writer import DuckDbWriter
from cdcworker.connectors.warehouses.sql.writer import PRUNE_EVERY_S

from tests.contract import dead_letters as contract
from tests.contract.warehouses import TOPIC


class Sink(contract.Sink):
    letters_class = DuckDbLetters

    def __init__(self, path: Path, **output):
        self.target = str(path)
        super().__init__(**output)

    def open_writer(self, epoch):
        writer = DuckDbWriter(self.target, "sink", output=self.output)
        writer.fence(epoch)
        writer.claim([TOPIC])
        writer.ledger()
        return writer

    def open_letters(self):
        return DuckDbLetters(self.target, "sink", output=self.output)

    def mend(self):
        for (partition, offset, part), content in self.bad.items():
            self.do(
                f"update _cdcworker.dead_letter set {part} = unhex('{content.hex()}')"
                f' where partition = {partition} and "offset" = {offset}'
            )

    def strip(self):
        self.do("update _cdcworker.dead_letter set headers = null")

    def forget(self):
        """As much later, when no record still to come can be older than a delete."""
        self.writer._pruned = time.monotonic() - 2 * PRUNE_EVERY_S

    def rewind(self):
        self.do("update _cdcworker.ledger set next_offset = 0")

    def do(self, text):
        with session(self.target) as connection:
            return connection.ask(text)

    def execute(self, text):
        """DuckDB adds no check to a table that is there."""
        _, found, check = text.partition(" add check ")
        if not found:
            return self.do(text)
        for statement in (
            "create table public.checked as from public.orders",
            "drop table public.orders",
            f"create table public.orders (id bigint, n integer, a varchar, big varchar, _cdc_position blob, check {check})",
            "insert into public.orders by name from public.checked",
        ):
            self.do(statement)
        return []
