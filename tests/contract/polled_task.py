"""A source task that a test polls as the runner does: a batch counts once its position is committed, all else is thrown away."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cdcworker.connectors.api.source import HoldsTables, SourceTask, WritesRecords
from cdcworker.schemas.change import Change, JsonObject, PollBatch
from cdcworker.schemas.errors import CdcError

from tests.unit.connectors.native_records import Registry

DEADLINE_S = 60.0
Key = tuple[Any, ...]


class PolledTask(ABC):
    """One connector over any number of task lives. `log` is what a read_committed consumer sees."""

    def __init__(self) -> None:
        self.config: dict[str, str] = {}
        self.log: list[Change] = []
        self.beside: list[Change] = []
        """Committed records that are no changes of tables."""
        self.lost: dict[Key, Change] = {}
        """What lives that are over have handed on without a position, by its place."""
        self.position: JsonObject | None = None
        self.open_changes: list[Any] = []
        self.mark: JsonObject = {}
        """The last watermark."""
        self.reports: list[JsonObject] = []
        self.task_epoch, self.attempt = 1, 0
        self.jobs: Sequence[JsonObject] = ()
        """What the worker has told the task of."""
        self.task: SourceTask | None = None
        self.registry: Registry | None = None
        """Lent to the task at each start: rows then are written as records, which the log holds read back."""

    @abstractmethod
    def make(self) -> SourceTask:
        """Makes the task of this life, which is not open."""

    def start(self, troubles: Mapping[str, CdcError] | None = None) -> Any:
        """`troubles`: tables to hold back, as the runner says before it opens a task."""
        task = self.task = self.make()
        try:
            if troubles:
                assert isinstance(task, HoldsTables)
                task.hold(troubles)
            task.open(json.loads(json.dumps(self.position)) if self.position else None)
            if self.registry is not None:
                assert isinstance(task, WritesRecords)
                task.use_layouts(self.registry)
        except BaseException:
            task.close()
            raise
        return self

    def kill(self) -> None:
        """Ends the life. What was not committed is gone."""
        task, self.task = self.task, None
        if task is not None:
            task.close()
        self.lost.update({change.position: change for change in self.open_changes if isinstance(change, Change)})
        self.open_changes = []

    def again(self) -> Any:
        """Returns itself, in another life."""
        self.kill()
        return self.start()

    def handed_on(self, batch: PollBatch) -> list[Any]:
        """Returns what a batch holds, as changes where that can be said."""
        return self.registry.changes(batch.changes) if self.registry else list(batch.changes)

    def poll(self, *, ack: bool = True, commit: bool = True, parts: bool = False) -> PollBatch:
        """`parts`: a transaction is committed in parts wherever that is possible."""
        assert self.task is not None
        batch = self.task.poll()
        self.open_changes += self.handed_on(batch)
        self.mark = batch.watermark or self.mark
        position = batch.part if parts and batch.position is None else batch.position
        if position is not None and commit:
            self.commit(position)
            if ack:
                self.task.ack(json.loads(json.dumps(position)))
        return batch

    def commit(self, position: JsonObject) -> None:
        """What was handed on is there from now on, with this position."""
        for item in self.open_changes:
            is_beside = isinstance(item, Change) and item.table.plain is not None
            (self.beside if is_beside else self.log).append(item)
        self.open_changes = []
        self.position = json.loads(json.dumps(position))

    def trouble(self, timeout_s: float = DEADLINE_S) -> CdcError:
        """Polls until there is an error for which a table may be held back, and starts anew without that table."""
        deadline = time.monotonic() + timeout_s
        found: CdcError | None = None
        while found is None:
            assert time.monotonic() < deadline
            try:
                self.poll()
            except CdcError as error:
                found = error
        assert isinstance(self.task, HoldsTables)
        assert self.task.holds(found), found
        self.kill()
        self.start({str(found.where["table"]): found})
        return found

    def poll_often(self) -> None:
        for _ in range(100):
            self.poll()

    def until(self, condition: Callable[[], Any], timeout_s: float = DEADLINE_S) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, f"not reached; {len(self.log)} changes, position {self.position}"
            self.poll()

    @property
    def loading(self) -> list[str]:
        """Tables that the last watermark says to lack rows."""
        return list(self.mark.get("loading", []))

    def loaded(self) -> bool:
        snapshot = (self.position or {}).get("snapshot") or {}
        return not (self.position is None or snapshot.get("loads") or snapshot.get("skips") or self.loading)

    def events(self, *ops: str) -> list[Change]:
        return [change for change in self.log if not ops or change.op in ops]

    def held(self) -> dict[str, str]:
        """Returns the code of each table that is held back, by its name."""
        return {table: why["code"] for table, why in (self.position or {}).get("quarantine", {}).items()}

    def outcome(self, identity: str) -> JsonObject | None:
        """Returns how a snapshot that was asked for has ended; None while it has not."""
        done = ((self.position or {}).get("snapshot") or {}).get("done", ())
        return next((item for item in done if item["id"] == identity), None)


def asked(identity: str, wanted: str = "RUNNING", **spec: Any) -> JsonObject:
    """Returns what a worker tells its task of a snapshot that was asked for."""
    return {"id": identity, "kind": "snapshot", "wanted": wanted, "spec": spec, "own": True}


def materialise(changes: Sequence[Change]) -> dict[tuple[str, ...], dict[Key, dict[str, Any]]]:
    """Returns what a sink that applies the log has: {path: {key: row}}. Checks that positions only ever go up."""
    tables: dict[tuple[str, ...], dict[Key, dict[str, Any]]] = {}
    last = None
    for change in changes:
        assert last is None or change.position > last, (last, change.position)
        last = change.position
        if change.op != "m":
            apply(tables.setdefault(change.table.path, {}), change)
    return tables


def apply(rows: dict[Key, dict[str, Any]], change: Change) -> None:
    """Applies one change to the rows of its table."""
    names = [column.name for column in change.table.columns]
    key = change.table.key
    if change.op == "t":
        rows.clear()
        return
    if change.op == "d":
        assert change.before is not None
        gone = rows.pop(tuple(change.before[i] for i in key), None)
        if change.other_key is not None and gone is not None:
            rows["moved", *change.other_key] = gone
        return
    assert change.after is not None
    new = dict(zip(names, change.after, strict=True))
    at = tuple(change.after[i] for i in key)
    old = rows.pop(("moved", *at), None) if change.other_key is not None else rows.get(at)
    for i in change.unchanged:
        new[names[i]] = old[names[i]] if old else "<never sent>"
    rows[at] = new
