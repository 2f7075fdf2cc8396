"""Debezium's heartbeats: a record each interval, in the Kafka transaction of a position, and the statement that goes with it."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

import psycopg
from cdcworker.connectors.postgres.beside_config import heartbeat_topic
from cdcworker.connectors.postgres.config import Settings
from cdcworker.connectors.postgres.errors import translate
from cdcworker.connectors.postgres.source_block import SOURCE_SCHEMA
from cdcworker.connectors.postgres.values import SESSION_OPTIONS
from cdcworker.schemas.change import Change, Column, JsonObject, Plain, Position, Table

if TYPE_CHECKING:
    from cdcworker.connectors.postgres.session import Session

log = logging.getLogger(__name__)

ACTION_MS_MAX: Final = 5_000
"""The stream waits as long."""
_SETTINGS: Final = "select set_config('statement_timeout', %s, false), set_config('search_path', %s, false)"
_PATH: Final = '"$user", public'
"""The statement is its author's, who does not know of ours."""
_NAMES: Final = "io.debezium.connector.common"


def heartbeat_table(topic: str) -> Table:
    return Table(
        path=("heartbeat",),
        table_id=0,
        columns=(Column("serverName", "string", optional=False), Column("ts_ms", "long", optional=False)),
        key=(0,),
        source_schema=SOURCE_SCHEMA,
        plain=Plain(topic, f"{_NAMES}.ServerNameKey", f"{_NAMES}.Heartbeat", of_key=False),
    )


class Heart:
    """Asked at boundaries of the stream; beats where an interval is set."""

    def __init__(self, settings: Settings) -> None:
        self._interval_s = settings.raw["heartbeat.interval.ms"] / 1000 if settings.slot_number == 0 else 0
        self._action: str = settings.raw["heartbeat.action.query"]
        self._prefix = settings.prefix
        self._table = heartbeat_table(heartbeat_topic(settings.raw))
        self._beaten_at = float("-inf")
        self._failures = 0
        self._failure = ""

    def due(self, now: float) -> bool:
        return self._interval_s > 0 and now - self._beaten_at >= self._interval_s

    def beat(self, session: Session, now: float) -> list[Change]:
        """The record, if it is time for one."""
        if not self.due(now):
            return []
        self._beaten_at = now
        if self._action:
            self._act(session)
        position = Position(session.position.safe_lsn, 0, 0)
        return [Change("m", self._table, position, {}, None, (self._prefix, time.time_ns() // 1_000_000))]

    def _act(self, session: Session) -> None:
        """What fails is told and counted; the stream goes on, as its position does not depend on it."""
        execute = session.catalog.execute
        try:
            execute(_SETTINGS, (str(ACTION_MS_MAX), _PATH))
            try:
                execute(self._action.encode())
            finally:
                execute(_SETTINGS, (SESSION_OPTIONS["statement_timeout"], SESSION_OPTIONS["search_path"]))
        except psycopg.Error as exc:
            if session.catalog.closed:
                raise
            error = translate(exc)
            self._failures, self._failure = self._failures + 1, error.code
            if session.told_once((0, f"heartbeat {error.code}")):
                log.warning("heartbeat.action.query failed error=%s", error)

    def report(self) -> JsonObject:
        if not self._action:
            return {}
        return {"heartbeat_action_failures": self._failures, "heartbeat_action_error": self._failure}
