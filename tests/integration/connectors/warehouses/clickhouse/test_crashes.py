"""Drivers that write to ClickHouse and are killed (SIGKILL), one after the other, and an engine that is: each row is there once."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

import pytest
from cdcworker.connectors.warehouses.clickhouse.client import Client
from cdcworker.connectors.warehouses.clickhouse.writer import ClickHouseWriter
from cdcworker.schemas.errors import CdcError

from tests import change_streams
from tests.clickhouse.server import ClickHouseServer, find_engine
from tests.contract import warehouses as contract

from . import killed_writer

PLACES = (
    *("sink.before_alter", "sink.after_alter", "sink.rows_written", "sink.rows_written@2", "sink.table_done"),
    *("sink.table_done@2", "sink.staged", "sink.before_commit", "sink.after_commit", "sink.before_commit@2"),
    *("sink.rows_written@3", "sink.after_alter", "sink.before_alter", "sink.after_commit@2"),
)
pytestmark = pytest.mark.clickhouse


def test_a_driver_that_is_killed_before_in_and_after_a_commit_leaves_each_row_once(clickhouse):
    killed_at(clickhouse, ("sink.rows_written@2", "sink.before_commit", "sink.after_commit"))


@pytest.mark.long
def test_drivers_that_are_killed_at_every_step_leave_each_row_once(clickhouse):
    killed_at(clickhouse, PLACES)


def killed_at(server, places):
    """One driver is killed at each of these places; the last one writes the rest."""
    server.wipe()
    for epoch, place in enumerate((*places, ""), 1):
        name, _, nth = place.partition("@")
        points = f"{name}=kill@{nth or 1}" if place else ""
        argv = [sys.executable, "-m", killed_writer.__name__, str(server.port), str(epoch)]
        done = subprocess.run(
            argv, env={**os.environ, "CDC_FAILPOINTS": points}, capture_output=True, text=True, timeout=120, check=False
        )
        if place and done.returncode == 0:
            # Nothing was left to do at this place.
            break
        assert done.returncode == (-signal.SIGKILL if place else 0), done.stderr[-2000:]
    holds_all(server)


def holds_all(server):
    writer = ClickHouseWriter(Client(server.place()), "sink")
    with contextlib.closing(writer):
        assert contract.rows(writer, "id", "n", "a", "big", "more") == killed_writer.wanted()
        rows = contract.rows(writer, "n", topic=killed_writer.TOPICS[1])
        assert rows == [(number,) for number in range(killed_writer.STEPS)]
        ends = {(record["topic"], 0): record["offset"] + 1 for record in killed_writer.records().records}
        assert dict(writer.ledger()) == ends


def test_an_engine_that_is_killed_in_the_middle_of_a_batch_is_gone_on_with(tmp_path):
    engine = find_engine()
    assert engine is not None
    with ClickHouseServer(engine, tmp_path / "clickhouse") as server:
        writer = ClickHouseWriter(Client(server.place()), "sink")
        writer.fence((1, 0))
        writer.claim(killed_writer.TOPICS)
        stream = killed_writer.records()
        batch = stream.assembler().build(change_streams.arrow(stream.records), writer.ledger(), 1)
        insert = writer._insert

        def killed(*args):
            insert(*args)
            server.kill()

        writer._insert = killed
        with pytest.raises(CdcError) as caught:
            writer.apply(batch)
        assert caught.value.kind == "transient"
        writer._insert = insert
        server.start()
        writer.apply(batch)
        writer.close()
        holds_all(server)
