"""Drivers that write to a file of DuckDB and are killed (SIGKILL), one after the other: each row is there once, in the columns of today."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from cdcworker.connectors.warehouses.duckdb.connection import session
from cdcworker.connectors.warehouses.duckdb.writer import DuckDbWriter

from ..mysql.killed_writer import STEPS, records, wanted
from . import killed_writer

PLACES = (
    *("sink.merge", "sink.table_done@2", "sink.staged", "sink.before_commit", "sink.after_commit"),
    *("sink.before_commit@2", "sink.merge@3", "sink.after_commit@2"),
)


pytestmark = pytest.mark.long


@pytest.mark.parametrize("how", ["alone", "together"])
def test_drivers_that_are_killed_at_every_step_leave_each_row_once(tmp_path, how):
    path = str(tmp_path / "shop.duckdb")
    for epoch, place in enumerate((*PLACES, ""), 1):
        name, _, nth = place.partition("@")
        points = f"{name}=kill@{nth or 1}" if place else ""
        argv = [sys.executable, "-m", killed_writer.__name__, path, str(epoch), how]
        done = subprocess.run(
            argv, env={**os.environ, "CDC_FAILPOINTS": points}, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == (-signal.SIGKILL if place else 0), done.stderr[-2000:]
    with session(path) as connection:
        assert connection.ask("select id, b, a, more from public.orders order by id") == wanted()
        assert connection.ask("select count(*) from public.other") == [(STEPS,)]
    ends = {(record["topic"], 0): record["offset"] + 1 for record in records().records}
    assert dict(DuckDbWriter(path, "sink").ledger()) == ends
