"""How far a task is behind its server: by itself while it reads, and from outside while it stands still."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from cdcworker.connectors.api.abilities import MeasuresLag, StandingTask
from cdcworker.connectors.mysql.source.connector import MySqlSource
from cdcworker.schemas.change import JsonObject

from ..logged import LoggedServer
from .reading import Reading
from .test_task import table, values

pytestmark = pytest.mark.mysql


def measured(one: Reading, memory: JsonObject | None = None, **numbers: Any) -> tuple[Any, Any]:
    """What is measured of the task from outside."""
    connector = MySqlSource(one.config)
    assert isinstance(connector, MeasuresLag)
    told = {"position": one.position, **numbers}
    return connector.measure_lag(StandingTask("c", 0, told, memory or {}, now_s=time.time()))


@pytest.fixture
def loaded(shop: LoggedServer, reading: Callable[..., Reading]) -> tuple[LoggedServer, Reading]:
    table(shop)
    one = reading(shop).start()
    one.until_loaded()
    return shop, one


def test_a_running_task_tells_what_it_has_not_read(loaded: tuple[LoggedServer, Reading]) -> None:
    server, one = loaded
    one.until(lambda: one.reports and one.reports[-1].get("lag_transactions") == 0)
    assert one.reports[-1]["binlog_bytes"] > 0
    assert one.reports[-1]["binlog_expires_in_s"] is None
    # The end of a log that was rotated lies behind events that are no transactions: nothing waits.
    server.ask("flush binary logs")
    count = len(one.reports)
    one.until(lambda: len(one.reports) > count and one.reports[-1].get("lag_bytes") == 0)
    assert one.reports[-1]["lag_transactions"] == 0


def test_a_task_that_stands_still_is_measured_from_outside(loaded: tuple[LoggedServer, Reading]) -> None:
    server, one = loaded
    one.stop()
    numbers, memory = measured(one)
    assert {name: numbers[name] for name in ("lag_s", "lag_bytes", "lag_transactions")} == {
        "lag_s": 0,
        "lag_bytes": 0,
        "lag_transactions": 0,
    }
    server.ask("set global binlog_expire_logs_seconds = 864000")
    for n in (10, 11, 12):
        server.ask(f"insert into shop.t values {values(n)}")
    memory = {**memory, "since_s": memory["since_s"] - 60}
    numbers, memory = measured(one, memory, table_lag_s={"shop.t": 0.0}, table_lag_bytes={"shop.t": 5, "shop.u": 15})
    server.ask("set global binlog_expire_logs_seconds = 0")
    assert numbers["lag_transactions"] == 3
    assert numbers["lag_bytes"] > 0
    assert numbers["lag_s"] >= 60
    assert 0 < numbers["binlog_expires_in_s"] <= 864_000
    assert numbers["table_lag_s"] == {"shop.t": numbers["lag_s"]}
    assert sum(numbers["table_lag_bytes"].values()) == pytest.approx(numbers["lag_bytes"], abs=2)
    one.start().until(lambda: len(one.rows("t")) == 6)
    one.stop()
    assert measured(one, memory)[0]["lag_s"] == 0


def test_a_task_without_a_position_has_no_lag(shop: LoggedServer, reading: Callable[..., Reading]) -> None:
    one = reading(shop)
    numbers, memory = measured(one)
    assert (numbers["lag_bytes"], numbers["lag_transactions"], memory) == (None, None, {})
