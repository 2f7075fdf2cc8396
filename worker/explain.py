"""One row's whole way: what is asked, of which connectors, and the child that looks for it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from cdcworker.coordinator.model import ClusterState, Connector, JsonObject, TaskId, View
from cdcworker.coordinator.state import task_set_of
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.worker.asking import ask
from cdcworker.worker.changes import Topics, topics_of
from cdcworker.worker.verify import source_of

COMMAND: Final = (sys.executable, "-m", "cdcworker.worker.explain_main")
TIMEOUT_S: Final = 80.0
"""Below the limit of a request; the child ends its search before."""
LSN: Final = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")
Json = dict[str, Any]

UNFINISHED: Final = declare(
    "explain.unfinished",
    "transient",
    "The way of the row could not be followed in time",
    "Ask again; name the LSN and the table to look in fewer places.",
)


@dataclass(frozen=True, slots=True)
class Asked:
    """`key` as of `tail`; `lsn` None: the newest change of the row."""

    table: str
    key: tuple[str, ...]
    lsn: int | None = None


def parse_lsn(text: str) -> int:
    """`0/16B3748`, or the number. Raises ValueError."""
    found = LSN.fullmatch(text)
    if found:
        return int(found[1], 16) << 32 | int(found[2], 16)
    if not (text.isascii() and text.isdigit() and len(text) <= 20):
        raise ValueError("an LSN is like 0/16B3748, or a number")
    return int(text)


def lsn_text(number: int) -> str:
    return f"{number >> 32:X}/{number & 0xFFFFFFFF:X}"


@dataclass(frozen=True, slots=True)
class Way:
    """The connectors that a row passes: its source, if it is known, and every sink that may read its topic."""

    topics: Topics
    source: Connector | None
    tasks: int
    sinks: tuple[Connector, ...] = field(default=())


def way_of(view: View, connector: Connector) -> Way:
    state = view.state
    if connector.kind == "source":
        sinks = tuple(each for each in state.connectors.values() if each.kind == "sink")
        return Way(topics_of(view, connector), connector, _tasks(state, connector), sinks)
    try:
        source: Connector | None = source_of(state, connector)
    except CdcError:
        source = None
    return Way(topics_of(view, connector), source, _tasks(state, source) if source else 0, (connector,))


def _tasks(state: ClusterState, connector: Connector) -> int:
    planned = task_set_of(state, connector.name)
    return max(1, len(planned.tasks) if planned is not None else 1)


def runs(view: View, connector: Connector, tasks: int) -> list[Json]:
    """Where the source's tasks run now, by what this worker knows."""
    out = []
    for number in range(tasks):
        status = view.statuses.get(TaskId(connector.name, number))
        out.append({"task": number, "worker": status.worker_id if status else None, "epoch": status.task_epoch if status else None})  # fmt: skip
    return out


class Explainer:
    """Asks a child, which may read Kafka and the sinks' targets. `logs`: names of our own topics."""

    def __init__(
        self,
        kafka: Mapping[str, str],
        providers: Mapping[str, str],
        logs: Mapping[str, Any],
        command: Sequence[str] = COMMAND,
    ) -> None:
        self._base = {"kafka": dict(kafka), "providers": dict(providers), "logs": dict(logs)}
        self._command = tuple(command)

    def explain(self, view: View, connector: Connector, asked: Asked) -> JsonObject:
        way = way_of(view, connector)
        source = None
        if way.source is not None:
            prefix = way.source.config.get("topic.prefix", "")
            source = {"name": way.source.name, "prefix": prefix, "runs": runs(view, way.source, way.tasks)}
        question = {
            **self._base,
            "asked": {"table": asked.table, "key": list(asked.key), "lsn": asked.lsn},
            "topics": list(way.topics.names),
            "pattern": way.topics.pattern,
            "source": source,
            "sinks": [{"name": sink.name, "config": dict(sink.config)} for sink in way.sinks],
        }
        answer = ask(self._command, question, TIMEOUT_S)
        try:
            found: JsonObject = json.loads(answer.out)
        except ValueError:
            raise CdcError(UNFINISHED, f"no answer within {TIMEOUT_S:g} s") from None
        return {"connector": connector.name, "table": asked.table, "lsn": asked.lsn, **found}
