"""Consistent sets of a lake: which version of each table belongs to one position of the source. They are in a table of the
sink's own, which changes in one step, after all others: a reader takes the versions that it names and no newer ones."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.api import SinkBatch, TargetRows, Through
from cdcworker.connectors.spark import lakesql
from cdcworker.connectors.spark.config import source_of, watermark_topics
from cdcworker.connectors.spark.errors import FENCED
from cdcworker.connectors.spark.lake import Found, LakeWriter, Place, read_place
from cdcworker.connectors.spark.lakerows import Stage, read_arrow
from cdcworker.connectors.spark.lakeside import OWN
from cdcworker.connectors.spark.manifests import Manifest, parse
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.failpoints import hit

if TYPE_CHECKING:
    import pyarrow as pa
    from cdcworker.connectors.spark.lake import Epoch, Tables
    from pyspark.sql import SparkSession

VIEW: Final = "cdc_set"
IDLE_S: Final = 60.0
"""As long as no table changes, readers are told this often how far they are."""


@dataclass(frozen=True, slots=True)
class Member:
    """A table in a set: its state there, and under which version it is found."""

    place: Place
    state: Manifest
    version: Any

    @property
    def found(self) -> Found:
        schema = self.state.arrow
        columns = {} if schema is None else {field.name: lakesql.type_of(field.type) for field in schema}
        return Found(self.state, columns, self.version, False, "")


@dataclass(frozen=True, slots=True)
class Shown:
    """What readers were told of one source, with its tables by topic."""

    through: Through
    members: Mapping[str, Member]


class Sets:
    """Those of one sink. `_cdcworker.set_<sink>` has a row per table of the set that is valid now."""

    def __init__(self, tables: Tables, sink: str) -> None:
        self._tables = tables
        self._sink = sink
        self.place = Place(OWN, f"set_{lakesql.stored_name(sink)}")
        self._found: Found | None = None
        self.shown: dict[str, Shown] = {}
        self._published = 0.0

    def read(self, session: SparkSession) -> Mapping[str, Shown]:
        """By source, as it is now."""
        found = self._tables.load(self.place)
        if found is None:
            return {}
        return _shown(read_arrow(session, f"SELECT * FROM {self._tables.at(self.place, found)}").to_pylist())

    def claim(self, session: SparkSession, epoch: Epoch) -> Mapping[str, Shown]:
        """From now on nobody with an older epoch publishes."""
        found = self._tables.load(self.place)
        if found is None:
            self._tables.create(self.place, lakesql.definition(_schema()), Manifest(self._sink, "", epoch))
            found = self._tables.load(self.place)
        assert found is not None
        assert found.state is not None
        if found.state.epoch > epoch:
            raise CdcError(FENCED, "a newer task publishes the sets of this sink", where={"sink": self._sink})
        if found.state.epoch < epoch:
            self._tables.commit(self.place, found, "", found.state.next(epoch))
            found = self._tables.load(self.place)
        self._found = found
        self.shown = dict(self.read(session))
        return self.shown

    @property
    def marks(self) -> Mapping[tuple[str, int], int]:
        """Offsets of the topics that say how far a source is."""
        state = self._found.state if self._found else None
        pairs = [(name.partition(":"), at) for name, at in (state.offsets if state else {}).items()]
        return {(topic, int(number)): at for (number, _, topic), at in pairs}

    def is_due(self, source: str, shown: Shown) -> bool:
        known = self.shown.get(source)
        same = known is not None and _versions(known) == _versions(shown)
        if same and known is not None and known.through.left_out == shown.through.left_out:
            return time.monotonic() - self._published > IDLE_S
        return True

    def publish(
        self,
        session: SparkSession,
        stage: Stage,
        epoch: Epoch,
        shown: Mapping[str, Shown],
        marks: Mapping[tuple[str, int], int],
    ) -> None:
        """All of them in one step; what is known of other sources stays."""
        found = self._found
        assert found is not None
        assert found.state is not None
        made = {**self.shown, **shown}
        rows = stage.view(session, VIEW, _rows(made))
        names = ", ".join(map(lakesql.quoted, _schema().names))
        statement = f"INSERT OVERWRITE {self._tables.name(self.place)} ({names}) SELECT {names} FROM {rows}"
        offsets = {**found.state.offsets, **{f"{number}:{topic}": end for (topic, number), end in marks.items()}}
        hit("sink.before_publish")
        self._tables.commit(self.place, found, statement, replace(found.state, offsets=offsets).next(epoch))
        self._found = self._tables.load(self.place)
        self.shown = made
        self._published = time.monotonic()


class WholeLakeWriter(LakeWriter):
    """A lake of which readers see whole transactions of the source, all tables at one position, by its sets."""

    def __init__(self, tables: Tables, sink: str, task: int = 0, **more: Any) -> None:
        super().__init__(tables, sink, task, **more)
        self._sets = Sets(tables, sink)

    def claim(self, topics: Sequence[str]) -> None:
        super().claim(topics)
        with self._translated():
            self._sets.claim(self._spark(), self._epoch)

    def ledger(self) -> Mapping[tuple[str, int], int]:
        return {**super().ledger(), **self._sets.marks}

    def through(self) -> Mapping[str, int]:
        """By source, how far readers were told that its transactions are shown."""
        return {source: shown.through.position for source, shown in self._sets.shown.items()}

    def ahead(self) -> Mapping[str, int]:
        """By source, how far the furthest of its tables is: sets before that cannot be had any more."""
        out: dict[str, int] = {}
        for topic, state in self._states.items():
            for position, _ in state.applied.values():
                source = source_of(topic)
                out[source] = max(out.get(source, 0), int(position[:16] or "0", 16) + 1)
        return out

    def apply_all(self, batches: Iterable[SinkBatch]) -> Mapping[str, Any]:
        """One after the other; readers see them together."""
        total: dict[str, Any] = {"rows": 0, "changes": 0, "orphans": 0, "tables": {}}
        replayed, through, marks = [], dict[str, Through](), dict[tuple[str, int], int]()
        for batch in batches:
            through.update(batch.through)
            said = {place: span for place, span in batch.offsets.items() if self._is_mark(place[0], batch)}
            marks.update({place: end for place, (_, end) in said.items()})
            left = replace(batch, offsets={place: span for place, span in batch.offsets.items() if place not in said})
            if left.offsets or left.tables or left.dead:
                counts = self.apply(left)
                replayed.append(bool(counts["replayed"]))
                _add(total, counts)
        self._show(through, marks)
        return {**total, "replayed": bool(replayed) and all(replayed)}

    def rows(self, topic: str) -> TargetRows | None:
        """As readers see them."""
        with self._translated():
            session = self._spark()
            for shown in self._sets.read(session).values():
                if topic in shown.members:
                    member = shown.members[topic]
                    return read_place(session, self._tables, member.place, member.found)
        return None

    def found(self) -> list[tuple[Place, Found]]:
        with self._translated():
            sets = self._sets.read(self._spark())
        return [(member.place, member.found) for shown in sets.values() for member in shown.members.values()]

    @staticmethod
    def _is_mark(topic: str, batch: SinkBatch) -> bool:
        return not batch.tables and topic in watermark_topics([f"{source}.-.-" for source in batch.through])

    def _show(self, through: Mapping[str, Through], marks: Mapping[tuple[str, int], int]) -> None:
        shown = {}
        for source, mark in through.items():
            members = {
                topic: Member(self._places[topic], state, self._versions[topic])
                for topic, state in self._states.items()
                if source_of(topic) == source
            }
            shown[source] = Shown(mark, members)
        if not any(self._sets.is_due(source, item) for source, item in shown.items()):
            return
        with self._translated():
            session = self._spark()
            self._sets.publish(session, self._stage, self._epoch, shown, marks)
            hit("sink.after_publish")
            for topic, state in self._states.items():
                self._tend_now(session, self._places[topic], state)

    def _tend(self, session: SparkSession, place: Place, state: Manifest) -> None:
        """Not before the next set: the versions of the one that is valid are needed."""


def _versions(shown: Shown) -> dict[str, Any]:
    return {topic: member.version for topic, member in shown.members.items()}


def _add(total: dict[str, Any], counts: Mapping[str, Any]) -> None:
    for name in ("rows", "changes", "orphans"):
        total[name] += counts[name]
    for name, changes in counts["tables"].items():
        total["tables"][name] = total["tables"].get(name, 0) + changes


def _schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema(
        [
            ("source", pa.string()),
            ("position", pa.int64()),
            ("committed_at", pa.timestamp("us", "UTC")),
            ("left_out", pa.list_(pa.string())),
            ("topic", pa.string()),
            ("schema", pa.string()),
            ("table", pa.string()),
            ("version", pa.int64()),
            ("state", pa.string()),
        ]
    )


def _rows(sets: Mapping[str, Shown]) -> pa.Table:
    import pyarrow as pa

    rows = [
        {
            "source": source,
            "position": shown.through.position,
            "committed_at": dt.datetime.fromtimestamp(shown.through.ts_ms / 1000, dt.UTC),
            "left_out": list(shown.through.left_out),
            "topic": topic,
            "schema": member.place.schema,
            "table": member.place.table,
            "version": member.version,
            "state": member.state.text(),
        }
        for source, shown in sets.items()
        for topic, member in shown.members.items()
    ]
    return pa.Table.from_pylist(rows, schema=_schema())


def _shown(rows: Iterable[Mapping[str, Any]]) -> dict[str, Shown]:
    out: dict[str, Shown] = {}
    for row in rows:
        ts_ms = round(row["committed_at"].timestamp() * 1000)
        through = Through(row["position"], ts_ms, tuple(row["left_out"] or ()))
        known = out.setdefault(row["source"], Shown(through, {}))
        member = Member(Place(row["schema"], row["table"]), parse(row["state"]), row["version"])
        out[row["source"]] = replace(known, members={**known.members, row["topic"]: member})
    return out
