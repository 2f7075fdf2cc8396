"""Debezium's signal table: rows that ask for snapshots, for an end or a pause of them, and for a line in the log. They come
with the stream.

A row is acted upon at the commit of its transaction, and what becomes of it is part of the position that is stored with
that transaction: once, whatever is killed. Of a transaction that is handed on in parts the rows of the parts before are
told again to whoever resumes inside it. A line in the log is in no position: it may come again after a kill.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cdcworker.connectors.capture.snapshot import jobs
from cdcworker.connectors.capture.snapshot.load_host import LoadHost
from cdcworker.connectors.capture.snapshot.progress import SnapshotLoad
from cdcworker.connectors.snapshot_jobs import pattern_problem
from cdcworker.schemas.change import JsonObject, Row
from cdcworker.schemas.failpoints import hit

log = logging.getLogger(__name__)

PENDING_MAX: Final = 1_000
"""Signals of one transaction. # INV-10"""
ID_MAX: Final = 100
MESSAGE_MAX: Final = 1_000
"""Characters of a message that go to the log. # INV-10"""
PLACE: Final = "{}"
"""Stands in a message for where the stream is."""
ON_DEMAND: Final = ("signal", "request")


@dataclass(frozen=True, slots=True)
class SignalStage:
    """What a signal acts upon, and where the stream is: its position, and the text that the database writes for it."""

    host: LoadHost
    position: int
    text: str


class SignalTable:
    """The signals of the transaction that is being read."""

    def __init__(self) -> None:
        self.pending: list[tuple[str, str, JsonObject]] = []
        """Id, type and data of each."""

    def take(self, plan: object, row: Row) -> None:
        """A new row of the signal table: its first three columns are id, type and data."""
        del plan
        texts = [value if isinstance(value, str) else None for value in row[:3]]
        if len(texts) < 3 or texts[1] is None:
            log.warning("signal is of another form and is left out")
            return
        try:
            data = json.loads(texts[2] or "{}")
        except ValueError:
            data = None
        if not isinstance(data, dict) or len(self.pending) >= PENDING_MAX:
            log.warning("signal is left out id=%s type=%s", str(texts[0])[:ID_MAX], texts[1][:ID_MAX])
            return
        self.pending.append(((texts[0] or "")[:ID_MAX], texts[1], data))

    def carry_out(self, stage: SignalStage) -> None:
        """Acts upon the signals of the transaction, at its commit."""
        pending, self.pending = self.pending, []
        for identity, kind, data in pending:
            act = _ACTS.get(kind)
            if act is None:
                log.info("signal without effect type=%s", kind[:ID_MAX])
            else:
                log.info("signal type=%s id=%s", kind, identity)
                act(stage, identity, data)
                hit("snapshot.signal_followed")


def _execute(stage: SignalStage, identity: str, data: JsonObject) -> None:
    progress = stage.host.scheduler.progress
    taken = {load.id for load in progress.loads} | {str(done["id"]) for done in progress.done}
    if not identity or identity in taken:
        identity = f"{identity}@{stage.position}"
    if data.get("surrogate-key") is not None:
        text = "rows are read in ranges of a table's own key, by which the stream's newer events are recognised"
        log.warning("surrogate-key is left out, %s id=%s", text, identity)
    jobs.begin(stage.host, identity, "signal", spec_of(data))


def spec_of(data: Mapping[str, Any]) -> JsonObject:
    """Returns the data of `execute-snapshot` as a request for a snapshot over REST would have it; `jobs.begin` checks it."""
    named = data.get("data-collections")
    tables = [str(name) for name in named] if isinstance(named, list) else named
    out: JsonObject = {"tables": tables}
    conditions = data.get("additional-conditions")
    if isinstance(conditions, list):
        pairs = (c for c in conditions if isinstance(c, dict) and c.get("filter"))
        found = {str(c.get("data-collection")): str(c["filter"]) for c in pairs}
        if found:
            # A condition may write its table otherwise than data-collections does: both writings are looked for.
            out["tables"] = [*(tables or ()), *(name for name in found if name not in (tables or ()))]
            out["filters"] = found
    elif isinstance(data.get("additional-condition"), str) and isinstance(tables, list):
        out["filters"] = dict.fromkeys(tables, data["additional-condition"])
    return out


def _on_demand(stage: SignalStage) -> list[SnapshotLoad]:
    return [load for load in stage.host.scheduler.progress.loads if load.origin in ON_DEMAND]


def _stop(stage: SignalStage, identity: str, data: JsonObject) -> None:
    named = data.get("data-collections")
    problem = next(filter(None, map(pattern_problem, named)), "") if isinstance(named, list) else ""
    if problem:
        log.warning("signal is left out id=%s type=stop-snapshot: %s", identity, problem)
        return
    for load in _on_demand(stage):
        if isinstance(named, list) and named:
            jobs.cancel_tables(stage.host, load, named)
        else:
            jobs.change(stage.host, load, "CANCELLED")


def _pause(stage: SignalStage, _identity: str, _data: JsonObject) -> None:
    for load in _on_demand(stage):
        jobs.change(stage.host, load, "PAUSED")


def _resume(stage: SignalStage, _identity: str, _data: JsonObject) -> None:
    for load in _on_demand(stage):
        jobs.change(stage.host, load, "RUNNING")


def _log(stage: SignalStage, identity: str, data: JsonObject) -> None:
    """Logs an operator's message in one line, behind a fixed text: it cannot be taken for a line of the worker's own."""
    text = data.get("message")
    if not isinstance(text, str):
        log.warning("signal has no message and is left out id=%s type=log", identity)
        return
    text = text[:MESSAGE_MAX].replace(PLACE, stage.text, 1)
    log.info("signal says: %s", "".join(c if c.isprintable() else " " for c in text))


_ACTS: Final = {
    "log": _log,
    "execute-snapshot": _execute,
    "stop-snapshot": _stop,
    "pause-snapshot": _pause,
    "resume-snapshot": _resume,
}
