"""Debezium's connector of MariaDB on a genuine Kafka Connect and ours, on the same server, write the same records."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from .. import debezium_deliberate as deliberate
from ..debezium_both import Both, running
from ..debezium_events import differences, ended, of_transactions, payload, with_counterparts
from ..debezium_statements import BEFORE, LAST, TABLES, TRANSACTION, WHILE, is_told_of
from ..logged import LoggedServer

pytestmark = [pytest.mark.kafka, pytest.mark.mysql, pytest.mark.long, pytest.mark.timeout(900)]


def test_the_same_statements_make_the_same_records(kafka: Any, logged: LoggedServer, tmp_path: Path) -> None:
    logged.ask("drop database if exists shop", *BEFORE)
    with running(kafka, tmp_path, logged, f"d{uuid.uuid4().hex[:8]}") as both:
        both.start(**{"provide.transaction.metadata": "true", "heartbeat.interval.ms": "1000"})
        for table, rows in TABLES.items():
            both.wait_for(f"shop.{table}", lambda found, rows=rows: len(found) >= rows, "rows of the snapshot")
        told = 0
        for statement in WHILE:
            logged.ask("set session time_zone = '+00:00'", statement)
            if is_told_of(statement):
                told += 1
                both.wait_for("", lambda found, told=told: len(with_counterparts(found)) >= told, statement)
        logged.ask(*TRANSACTION)
        logged.ask(LAST)
        both.wait_for("shop.pairs", lambda found: payload(found[-1])["after"]["a"] == 9999, "the last row")
        both.wait_for(
            "transaction", lambda found: payload(found[-1])["id"] == str(logged.position()), "the last transaction"
        )
        found = told_by(both)
    unexpected = {name: deliberate.unexpected(name, lines) for name, lines in found.items()}
    assert not any(unexpected.values()), json.dumps(unexpected, indent=1)
    assert deliberate.unused(found) == []


def told_by(both: Both) -> dict[str, list[str]]:
    """The differences of each topic. The topic of watermarks is ours alone."""
    names = {*both.topics(both.theirs), *both.topics(both.ours)} - {"watermark"}
    told = {}
    for name in sorted(names):
        theirs, ours = both.records(both.theirs, name), both.records(both.ours, name)
        wanted = ended(theirs)
        told[name] = list(
            differences(of_transactions(with_counterparts(theirs), wanted), of_transactions(ours, wanted))
        )
    return told
