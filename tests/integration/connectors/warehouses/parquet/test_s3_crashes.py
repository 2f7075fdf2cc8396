"""Drivers that write to a bucket and are killed (SIGKILL), one after the other: each row is there once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid

import pytest
from cdcworker.connectors.warehouses.parquet.consistent_sets import WholeParquetWriter
from cdcworker.connectors.warehouses.parquet.writer import ParquetWriter

from tests.contract import warehouses as contract

from . import killed_writer

PLACES = ("sink.staged", "sink.before_commit@2", "sink.after_commit", "sink.after_commit@3")
PUBLISHED = ("sink.before_publish", "sink.after_publish", "sink.after_commit@2")


pytestmark = pytest.mark.s3


def test_drivers_that_are_killed_leave_each_row_once(s3):
    killed_at(s3, "tables", ("sink.before_commit@2", "sink.after_commit@3"))


@pytest.mark.long
@pytest.mark.parametrize(("kind", "places"), [("tables", PLACES), ("sets", PUBLISHED)])
def test_drivers_that_are_killed_at_every_step_leave_each_row_once(s3, kind, places):
    killed_at(s3, kind, places)


def killed_at(s3, kind, places):
    """One driver is killed at each of these places; the last one writes the rest."""
    prefix = uuid.uuid4().hex
    for epoch, place in enumerate((*places, ""), 1):
        name, _, nth = place.partition("@")
        points = f"{name}=kill@{nth or 1}" if place else ""
        argv = [sys.executable, "-m", killed_writer.__name__, s3.endpoint, prefix, str(epoch), kind]
        done = subprocess.run(
            argv, env={**os.environ, "CDC_FAILPOINTS": points}, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == (-signal.SIGKILL if place else 0), done.stderr[-2000:]
    files = s3.files(prefix)
    reader = (WholeParquetWriter if kind == "sets" else ParquetWriter)(files, "sink")
    if kind == "sets":
        reader.fence((epoch, 0))
        reader.claim(killed_writer.TOPICS)
    first, other = killed_writer.TOPICS
    assert contract.rows(reader, "id", "n", topic=first) == sorted(killed_writer.wanted(), key=repr)
    assert contract.rows(reader, "id", topic=other) == [(number,) for number in range(killed_writer.STEPS)]
    ends = {(record["topic"], 0): record["offset"] + 1 for record in killed_writer.records().records}
    assert {place: end for place, end in reader.ledger().items() if place in ends} == ends
