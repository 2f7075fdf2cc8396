"""Debezium's heartbeats: one record each interval, in the Kafka transaction that stores a position."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from cdcworker.schemas.change import Change, Column, JsonObject, PlainRecord, Position, Table
from cdcworker.schemas.errors import CdcError

log = logging.getLogger(__name__)

_NAMES: Final = "io.debezium.connector.common"

RunAction = Callable[[str], CdcError | None]
"""Runs `heartbeat.action.query` and returns what it failed with, None where it has succeeded."""


def heartbeat_table(topic: str, source_schema: Mapping[str, Any]) -> Table:
    """The shape of heartbeat records, which are written without an envelope."""
    return Table(
        path=("heartbeat",),
        table_id=0,
        columns=(Column("serverName", "string", optional=False), Column("ts_ms", "long", optional=False)),
        key=(0,),
        source_schema=source_schema,
        plain=PlainRecord(topic, f"{_NAMES}.ServerNameKey", f"{_NAMES}.Heartbeat", of_key=False),
    )


class Heartbeat:
    """Makes the heartbeat records of one task. `interval_s` of 0: none are made. `action` is the statement that is run before
    each of them, empty where there is none."""

    def __init__(self, table: Table, prefix: str, interval_s: float, action: str = "") -> None:
        self._table = table
        self._prefix = prefix
        self.interval_s = interval_s
        self._action = action
        self._made_at = float("-inf")
        self._failures = 0
        self._failure = ""
        self._logged_codes: set[str] = set()

    def due(self, now: float) -> bool:
        """Returns whether it is time for a record; `now` is of the monotonic clock, in seconds."""
        return self.interval_s > 0 and now - self._made_at >= self.interval_s

    def beat(self, now: float, position: Position, run: RunAction) -> list[Change]:
        """Runs the statement and returns the record at this position, if it is time for one."""
        if not self.due(now):
            return []
        self._made_at = now
        if self._action:
            self._count(run(self._action))
        return [Change("m", self._table, position, {}, None, (self._prefix, time.time_ns() // 1_000_000))]

    def _count(self, error: CdcError | None) -> None:
        """A failure is logged and counted; the stream goes on, as its position does not depend on the statement."""
        if error is None:
            return
        self._failures, self._failure = self._failures + 1, error.code
        if error.code not in self._logged_codes:
            self._logged_codes.add(error.code)
            log.warning("heartbeat.action.query failed error=%s", error)

    def report(self) -> JsonObject:
        """The members of the task's numbers: how often the statement failed, and the code of its last failure."""
        if not self._action:
            return {}
        return {"heartbeat_action_failures": self._failures, "heartbeat_action_error": self._failure}
