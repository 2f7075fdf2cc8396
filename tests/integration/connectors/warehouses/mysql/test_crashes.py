"""Drivers that write to MySQL and are killed (SIGKILL), one after the other: each row is there once, in the columns of today."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from cdcworker.connectors.warehouses.mysql.writer import MySqlWriter

from tests.contract import warehouses as contract

from . import killed_writer

PLACES = (
    *("sink.before_alter", "sink.after_alter", "sink.merge", "sink.table_done@2", "sink.staged", "sink.before_commit"),
    *("sink.after_commit", "sink.after_alter", "sink.before_commit@2", "sink.before_alter", "sink.after_commit@2"),
)

pytestmark = [pytest.mark.mysql, pytest.mark.long]


@pytest.mark.parametrize("how", ["alone", "together"])
def test_drivers_that_are_killed_at_every_step_leave_each_row_once(mysql, how):
    killed_at(mysql, how, PLACES)


def killed_at(mysql, how, places):
    """One driver is killed at each of these places; the last one writes the rest."""
    mysql.wipe()
    for epoch, place in enumerate((*places, ""), 1):
        name, _, nth = place.partition("@")
        points = f"{name}=kill@{nth or 1}" if place else ""
        argv = [sys.executable, "-m", killed_writer.__name__, str(mysql.port), mysql.password, str(epoch), how]
        done = subprocess.run(
            argv, env={**os.environ, "CDC_FAILPOINTS": points}, capture_output=True, text=True, timeout=120, check=False
        )
        if place and done.returncode == 0:
            # Nothing was left to do at this place.
            break
        assert done.returncode == (-signal.SIGKILL if place else 0), done.stderr[-2000:]
    found = mysql.ask("select id, b, a, more from public.orders order by id")
    assert list(found) == killed_writer.wanted()
    assert mysql.ask("select count(*) from public.other") == ((killed_writer.STEPS,),)
    writer = MySqlWriter(mysql.login(), "sink")
    ends = {(record["topic"], 0): record["offset"] + 1 for record in killed_writer.records().records}
    assert {place: end for place, end in writer.ledger().items() if place in ends} == ends
    if how == "together":
        assert writer.through() == {"shop": max(writer.through().values())}
    assert contract.rows(writer, "id", topic=killed_writer.TOPICS[1]) == [(n,) for n in range(killed_writer.STEPS)]
    writer.close()
