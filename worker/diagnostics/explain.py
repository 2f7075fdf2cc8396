"""`explain`: the connectors that one row passes, and the child process that looks for the row in each of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from cdcworker.connectors.api.source import ShowsPlaces, ShowsPositions
from cdcworker.connectors.registry.names import plugins
from cdcworker.coordinator.log.config_fold import task_set_of
from cdcworker.coordinator.log.connections import as_run
from cdcworker.coordinator.model import ClusterState, Connector, JsonObject, TaskId, View
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.schemas.untrusted.json_text import JsonRefused, parse_message
from cdcworker.worker.children.call import call_child
from cdcworker.worker.diagnostics.tail import TailTopics, topics_of
from cdcworker.worker.diagnostics.verify import source_of

COMMAND: Final = (sys.executable, "-m", "cdcworker.worker.diagnostics.explain_child")
TIMEOUT_S: Final = 80.0
"""Below the limit of a request; the child ends its search before."""
Json = dict[str, Any]

UNFINISHED: Final = declare(
    "explain.unfinished",
    "transient",
    "The way of the row could not be followed in time",
    "Ask again; name the change's position and the table to look in fewer places.",
)


@dataclass(frozen=True, slots=True)
class ExplainRequest:
    """`key` in the form of `tail`; without `position` and `place` the newest change of the row is followed."""

    table: str
    key: tuple[str, ...]
    position: int | None = None
    place: str = ""
    """A place in the source's log in its own form, in place of a position."""


@dataclass(frozen=True, slots=True)
class RowRoute:
    """The connectors that a row passes: its source, if it is known, and every sink that may read its topic."""

    topics: TailTopics
    source: Connector | None
    tasks: int
    sinks: tuple[Connector, ...] = field(default=())


def way_of(view: View, connector: Connector) -> RowRoute:
    """Returns the route of rows that the connector writes, if it is a source, or reads, if it is a sink."""
    state = view.state
    if connector.kind == "source":
        sinks = tuple(each for each in state.connectors.values() if each.kind == "sink")
        return RowRoute(topics_of(view, connector), connector, _tasks(state, connector), sinks)
    try:
        source: Connector | None = source_of(state, connector)
    except CdcError:
        source = None
    return RowRoute(topics_of(view, connector), source, _tasks(state, source) if source else 0, (connector,))


def parse_position(view: View, connector: Connector, text: str) -> tuple[int | None, str]:
    """Reads a position, or a place of the log, in the form of the connector's source. Raises ValueError with a text for people."""
    source = way_of(view, connector).source
    name = source.config.get("connector.class", "") if source else ""
    places = places_of(name)
    try:
        return positions_of(name).parse_position(text), ""
    except ValueError:
        if places is None:
            raise
    return None, places.parse_place(text)


def places_of(source_class: str) -> type[ShowsPlaces] | None:
    """Returns what shows and reads places in the log of the source with this `connector.class`; None: it has none besides
    positions."""
    for plugin in plugins():
        if plugin.kind == "source" and source_class in (plugin.name, *plugin.aliases):
            found: type = plugin.load()
            return found if issubclass(found, ShowsPlaces) else None
    return None


def positions_of(source_class: str) -> type[ShowsPositions]:
    """Returns what shows and reads positions of the source with this `connector.class`; where this worker does
    not know it, the first connector of this worker that has a form of its own."""
    sources = [plugin for plugin in plugins() if plugin.kind == "source"]
    wanted = [plugin for plugin in sources if source_class in (plugin.name, *plugin.aliases)]
    for plugin in wanted or sources:
        found: type = plugin.load()
        if issubclass(found, ShowsPositions):
            return found
    return PlainPositions


class PlainPositions:
    """Positions of a source without a form of its own: decimal numbers of at most 64 bits."""

    @staticmethod
    def position_name() -> str:
        return "position"

    @staticmethod
    def position_text(commit: int) -> str:
        return str(commit)

    @staticmethod
    def parse_position(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) <= 20):
            raise ValueError("a position is a number")
        return int(text)


def _tasks(state: ClusterState, connector: Connector) -> int:
    planned = task_set_of(state, connector.name)
    return max(1, len(planned.tasks) if planned is not None else 1)


def runs(view: View, connector: Connector, tasks: int) -> list[Json]:
    """Returns where the source's tasks run now, by what this worker knows."""
    out = []
    for number in range(tasks):
        status = view.statuses.get(TaskId(connector.name, number))
        out.append({"task": number, "worker": status.worker_id if status else None, "epoch": status.task_epoch if status else None})  # fmt: skip
    return out


class Explainer:
    """Has a child process look for the row in Kafka and in the sinks' targets. `logs`: the cluster's internal
    topics."""

    def __init__(
        self,
        kafka: Mapping[str, str],
        providers: Mapping[str, str],
        logs: Mapping[str, Any],
        command: Sequence[str] = COMMAND,
    ) -> None:
        self._base = {"kafka": dict(kafka), "providers": dict(providers), "logs": dict(logs)}
        self._command = tuple(command)

    def explain(
        self, view: View, connector: Connector, asked: ExplainRequest, sees: Callable[[str], bool] = lambda _: True
    ) -> JsonObject:
        """Returns the stages of the row's way. Of other connectors only those that `sees` lets pass are told of."""
        way = way_of(view, connector)
        source = None
        if way.source is not None and sees(way.source.name):
            prefix = way.source.config.get("topic.prefix", "")
            source = {
                "name": way.source.name,
                "class": way.source.config.get("connector.class", ""),
                "prefix": prefix,
                "runs": runs(view, way.source, way.tasks),
            }
        question = {
            **self._base,
            "asked": {"table": asked.table, "key": list(asked.key), "lsn": asked.position, "place": asked.place},
            "topics": list(way.topics.names),
            "pattern": way.topics.pattern,
            "prefixes": list(way.topics.prefixes),
            "source": source,
            "sinks": [
                {"name": sink.name, "config": dict(as_run(view.state, sink).config)}
                for sink in way.sinks
                if sees(sink.name)
            ],
        }
        answer = call_child(self._command, question, TIMEOUT_S)
        try:
            found: JsonObject = parse_message(answer.out)
        except JsonRefused:
            raise CdcError(UNFINISHED, f"no answer within {TIMEOUT_S:g} s") from None
        bound = list(connector.topic_prefixes)
        return {
            "connector": connector.name, "table": asked.table, "lsn": asked.position or asked.place or None, "topic_prefixes": bound, **found
        }  # fmt: skip
