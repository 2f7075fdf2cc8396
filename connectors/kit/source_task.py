"""The task of a small source: asks it for pages, and keeps its cursor in the position."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from cdcworker.connectors.api.context import TaskContext
from cdcworker.connectors.api.opened import Closes
from cdcworker.connectors.api.plugin_errors import FAILED, RECORD_REFUSED, Unavailable, failed
from cdcworker.connectors.api.small_source import SmallSource, SourcePage, SourceRecord
from cdcworker.connectors.kit.rows import TableShape, shapes_of
from cdcworker.connectors.telemetry.retry_status import RetryStatus
from cdcworker.schemas.change import Change, JsonObject, PollBatch, Position, Row
from cdcworker.schemas.errors import CdcError, declare

log = logging.getLogger(__name__)

POSITION_INVALID: Final = declare(
    "plugin.position_invalid",
    "config",
    "The stored position is not one of this source",
    "Reset the connector's offsets, or give it another name.",
)

VERSION: Final = 1
COMMIT_MAX: Final = 1 << 62
WAIT_S: Final = 0.1
RETRY_AFTER_S_MAX: Final = 3_600.0
CURSOR_BYTES_MAX: Final = 100_000
"""The position is one record of a topic, and is shown to people."""


class SourceIdentity(NamedTuple):
    """What the records of a connector say about where they come from."""

    plugin: str
    version: str
    prefix: str

    @property
    def namespace(self) -> str:
        return namespace_of(self.plugin)


def namespace_of(plugin: str) -> str:
    """Returns the plugin's name as the part of topics and of schemas that stands before the table."""
    return plugin.replace("-", "_")


class SmallSourceTask:
    """Position: the cursor that the source has returned last, and the number of its last page, which rises with the clock."""

    def __init__(
        self,
        make: Callable[[], SmallSource],
        identity: SourceIdentity,
        interval_s: float,
        context: TaskContext,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._make = make
        self._identity = identity
        self._interval_s = interval_s
        self._context = context
        self._clock = clock
        self._sleep = sleep
        self._source: SmallSource | None = None
        self._shapes: Mapping[str, TableShape] = {}
        self._commit = 0
        self._cursor: JsonObject | None = None
        self._due = 0.0
        self._mark: JsonObject | None = None
        self._retrying = RetryStatus()

    def open(self, position: JsonObject | None) -> None:
        self._commit, self._cursor = read_position(position)
        self._source = _called(self._make)
        self._shapes = shapes_of(self._identity.namespace, _listed(_called(self._source.tables)))
        self._due = self._clock()

    def poll(self) -> PollBatch:
        left = self._due - self._clock()
        if left > 0:
            self._sleep(min(left, WAIT_S))
            return PollBatch(watermark=self._mark, idle=True)
        began_ms = time.time_ns() // 1_000_000
        page = self._read()
        if page is None:
            return PollBatch(watermark=self._mark, idle=True)
        cursor = _stored(page.cursor)
        records = _listed(page.records)
        # By the clock: where an operator resets the cursor, what is read again is newer than what a target has.
        commit = max(self._commit + 1, began_ms * 1_000)
        changes = [self._change(record, Position(commit, index, 0), began_ms) for index, record in enumerate(records)]
        self._due = self._clock() + self._pause_s(page)
        is_new = bool(changes) or cursor != self._cursor
        self._cursor = cursor
        if changes:
            self._commit = changes[0].position.commit
        if not page.more:
            self._mark = {"commit_lsn": self._commit, "ts_ms": began_ms}
        position = {"v": VERSION, "commit": self._commit, "cursor": cursor} if is_new else None
        return PollBatch(changes, position, self._mark, idle=not page.more)

    def ack(self, position: JsonObject) -> None:
        """A small source keeps what it has."""

    def close(self) -> None:
        source, self._source = self._source, None
        if isinstance(source, Closes):
            try:
                source.close()
            except Exception as error:  # noqa: BLE001 - a plugin's own code; its text may hold values
                log.warning("the source could not be closed error=%s", failed(error))

    def _read(self) -> SourcePage | None:
        """Returns the next page; None: the source has said when it is to be asked again."""
        assert self._source is not None
        read = self._source.read
        cursor = None if self._cursor is None else json.loads(json.dumps(self._cursor))
        try:
            page = _called(lambda: read(cursor))
        except Unavailable as error:
            if error.retry_after_s is None:
                raise
            self._retrying.failed(error)
            self._context.report(self._retrying.numbers())
            wait_s = min(max(0.0, error.retry_after_s), RETRY_AFTER_S_MAX)
            self._due = self._clock() + wait_s
            log.warning("the source is asked again delay_s=%.1f error=%s", wait_s, error)
            return None
        if not isinstance(page, SourcePage):
            raise CdcError(FAILED, f"`read` returned {type(page).__name__} in place of SourcePage")
        if self._retrying.is_trying:
            self._retrying.over()
            self._context.report(self._retrying.numbers())
        return page

    def _pause_s(self, page: SourcePage) -> float:
        if page.wait_s is not None:
            return min(max(0.0, page.wait_s), RETRY_AFTER_S_MAX)
        return 0.0 if page.more else self._interval_s

    def _change(self, record: SourceRecord, position: Position, ts_ms: int) -> Change:
        shape = self._shapes.get(record.table) if isinstance(record, SourceRecord) else None
        if shape is None:
            raise CdcError(RECORD_REFUSED, "`read` returned a record of a table that `tables` does not name")
        before: Row | None = None
        after: Row | None = None
        if record.op == "d":
            before = shape.gone(record.row)
        elif record.op in ("c", "u", "r"):
            after = shape.row(record.row)
        else:
            raise CdcError(RECORD_REFUSED, "a record has an operation other than c, u, d and r")
        source = {
            "version": self._identity.version,
            "connector": self._identity.plugin,
            "name": self._identity.prefix,
            "ts_ms": ts_ms,
            "schema": shape.table.path[0],
            "table": shape.name,
            "commit_lsn": position.commit,
            "tx_index": position.event,
            "tx_sub": 0,
        }
        return Change(record.op, shape.table, position, source, before=before, after=after)


def read_position(position: JsonObject | None) -> tuple[int, JsonObject | None]:
    """Returns the number of the last page and its cursor. CdcError `plugin.position_invalid`."""
    if position is None:
        return 0, None
    commit, cursor = position.get("commit"), position.get("cursor")
    is_number = isinstance(commit, int) and not isinstance(commit, bool) and 0 <= commit < COMMIT_MAX
    if position.get("v") != VERSION or not is_number or not isinstance(cursor, dict):
        raise CdcError(POSITION_INVALID, "the stored position holds no cursor of a plugin's source")
    assert isinstance(commit, int)
    return commit, cursor


def _called(call: Callable[[], Any]) -> Any:
    """Returns what a plugin's code returns. CdcError: its own, or `plugin.failed`."""
    try:
        return call()
    except (CdcError, MemoryError):
        raise
    except Exception as error:
        log.debug("a plugin has failed", exc_info=True)
        raise failed(error) from None


def _listed(value: Any) -> Sequence[Any]:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise CdcError(FAILED, f"the source returned {type(value).__name__} in place of a list")
    return value


def _stored(cursor: Any) -> JsonObject:
    """Returns a cursor as it comes back after a restart. CdcError `plugin.failed` for what JSON does not have."""
    try:
        text = json.dumps(cursor, allow_nan=False)
        found = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        found, text = None, ""
    if not isinstance(found, dict) or found != cursor or len(text) > CURSOR_BYTES_MAX:
        text = f"a cursor has to be a dict of JSON values with at most {CURSOR_BYTES_MAX} bytes"
        raise CdcError(FAILED, text)
    return found
