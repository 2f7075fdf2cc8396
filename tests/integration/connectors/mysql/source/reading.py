"""A task that a test polls as the engine does: what was handed on since the last position is lost with it."""

from __future__ import annotations

from typing import Any

from cdcworker.connectors.api.context import TaskContext
from cdcworker.connectors.mysql.source.connector import MySqlSource, MySqlTask
from cdcworker.schemas.change import Change, JsonObject, PollBatch, Position

from tests.contract.polled_task import PolledTask

from ..logged import LoggedServer


def config_of(server: LoggedServer, **more: str) -> dict[str, str]:
    """A config of tables of the database `shop`."""
    return {
        "name": "shop",
        "connector.class": "io.debezium.connector.mariadb.MariaDbConnector",
        "database.hostname": "127.0.0.1",
        "database.port": str(server.port),
        "database.user": "cdc",
        "database.password": server.password,
        "database.server.id": "4712",
        "database.include.list": "shop",
        "topic.prefix": "p",
        **{name.replace("__", "."): value for name, value in more.items()},
    }


class Reading(PolledTask):
    """One run of a task after another, each from the last stored position. `changes` are those of stored positions."""

    def __init__(self, server: LoggedServer, **config: str) -> None:
        super().__init__()
        self.config = config_of(server, **config)
        self.changes: list[Change] = []
        self.part: JsonObject | None = None
        self._part: list[Any] = []

    def make(self) -> MySqlTask:
        context = TaskContext(
            "c",
            0,
            self.task_epoch,
            "i",
            "",
            report=self.reports.append,
            jobs=lambda: self.jobs,
            attempt=self.attempt,
        )
        connector = MySqlSource(self.config)
        (share,) = connector.split(1)
        task = connector.task(share, context)
        assert isinstance(task, MySqlTask)
        return task

    def poll(self, *, ack: bool = True, commit: bool = True, parts: bool = False) -> PollBatch:
        batch = super().poll(ack=ack, commit=commit, parts=parts)
        if batch.part is not None:
            self.part, self._part = batch.part, list(self.open_changes)
        return batch

    def commit(self, position: JsonObject) -> None:
        self.changes += [change for change in self.open_changes if isinstance(change, Change)]
        super().commit(position)

    def store_part(self) -> None:
        """The engine has committed what was handed on of a transaction, with the position inside it."""
        assert self.part is not None
        self.open_changes = self._part
        self.commit(self.part)

    @property
    def watermark(self) -> JsonObject:
        return self.mark

    def until_loaded(self) -> None:
        self.until(lambda: self.position and not self.progress.get("loads") and self.progress.get("loaded"))

    @property
    def progress(self) -> JsonObject:
        """What the stored position says of rows."""
        assert self.position is not None
        found: JsonObject = self.position["snapshot"]
        return found

    def rows(self, table: str) -> list[tuple[str, Any]]:
        """Operation, and the new row or for a deletion the old one, of a table's changes."""
        return [(c.op, c.before if c.op == "d" else c.after) for c in self.changes if c.table.path[-1] == table]

    def state(self, table: str) -> dict[Any, Any]:
        """What a reader of the changes has of a table, by its first column."""
        rows: dict[Any, Any] = {}
        for op, row in self.rows(table):
            if op == "t":
                rows.clear()
            elif op == "d":
                rows.pop(row[0], None)
            else:
                rows[row[0]] = row
        return rows

    def places(self) -> list[Position]:
        return [change.position for change in self.changes if change.table.plain is None]

    def stop(self) -> None:
        """Ends the task; what it had handed on behind the last position is lost."""
        self.kill()
