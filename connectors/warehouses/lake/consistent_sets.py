"""Consistent sets of a lake: which version of each table belongs to one position of the source. They are in a table of the
sink's own, which changes in one step, after all others: a reader takes the versions that it names and no newer ones."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.api.table_batch import SinkBatch, VisibleThrough
from cdcworker.connectors.api.table_writer import TargetRows
from cdcworker.connectors.sink_errors import FENCED
from cdcworker.connectors.warehouses import consistent_sets
from cdcworker.connectors.warehouses.consistent_sets import Marks, PublishedSet, PublishedSets, SetMember
from cdcworker.connectors.warehouses.lake import statements
from cdcworker.connectors.warehouses.lake.affected_rows import StagedFiles, read_arrow, read_place
from cdcworker.connectors.warehouses.lake.side_tables import OWN
from cdcworker.connectors.warehouses.lake.tables import LakeName, TableVersion
from cdcworker.connectors.warehouses.lake.writer import LakeWriter
from cdcworker.connectors.warehouses.table_state import Manifest, parse
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.failpoints import hit

if TYPE_CHECKING:
    import pyarrow as pa
    from cdcworker.connectors.warehouses.lake.tables import LakeTables
    from cdcworker.connectors.warehouses.lake.writer import Epoch
    from pyspark.sql import SparkSession

VIEW: Final = "cdc_set"


def found_of(member: SetMember) -> tuple[LakeName, TableVersion]:
    """Returns the name and the version under which a member of a set is read."""
    schema = member.state.arrow
    columns = {} if schema is None else {field.name: statements.type_of(field.type) for field in schema}
    return LakeName(*member.place), TableVersion(member.state, columns, member.version, False, "")


class LakeSets(PublishedSets):
    """The consistent sets of one sink. `_cdcworker.set_<sink>` has a row per table of the set that is valid now."""

    def __init__(self, tables: LakeTables, sink: str) -> None:
        super().__init__()
        self._tables = tables
        self._sink = sink
        self.place = LakeName(OWN, f"set_{statements.stored_name(sink)}")
        self._found: TableVersion | None = None

    def read(self, session: SparkSession) -> Mapping[str, PublishedSet]:
        """Returns the published set of each source as it is now."""
        found = self._tables.load(self.place)
        if found is None:
            return {}
        return _shown(read_arrow(session, f"SELECT * FROM {self._tables.at(self.place, found)}").to_pylist())

    def claim(self, session: SparkSession, epoch: Epoch) -> Mapping[str, PublishedSet]:
        """Raises the epoch: from now on no task with an older one publishes. CdcError FENCED when there is a newer one."""
        found = self._tables.load(self.place)
        if found is None:
            self._tables.create(self.place, statements.definition(_schema()), Manifest(self._sink, "", epoch))
            found = self._tables.load(self.place)
        assert found is not None
        assert found.state is not None
        if found.state.epoch > epoch:
            raise CdcError(FENCED, "a newer task publishes the sets of this sink", where={"sink": self._sink})
        if found.state.epoch < epoch:
            self._tables.commit(self.place, found, "", found.state.next(epoch))
            found = self._tables.load(self.place)
        self.shown = dict(self.read(session))
        self._found = found
        return self.shown

    @property
    def is_claimed(self) -> bool:
        """Whether `shown` is what readers see."""
        return self._found is not None

    def forget(self) -> None:
        """Until the next claim another task may publish."""
        self._found = None

    @property
    def marks(self) -> Marks:
        state = self._found.state if self._found else None
        pairs = [(name.partition(":"), at) for name, at in (state.offsets if state else {}).items()]
        return {(topic, int(number)): at for (number, _, topic), at in pairs}

    def publish(
        self,
        session: SparkSession,
        stage: StagedFiles,
        epoch: Epoch,
        shown: Mapping[str, PublishedSet],
        marks: Marks,
    ) -> None:
        """Publishes the sets of several sources in one step; those of other sources stay."""
        found = self._found
        assert found is not None
        assert found.state is not None
        made = {**self.shown, **shown}
        rows = stage.view(session, VIEW, _rows(made))
        names = ", ".join(map(statements.quoted, _schema().names))
        statement = f"INSERT OVERWRITE {self._tables.name(self.place)} ({names}) SELECT {names} FROM {rows}"
        offsets = {**found.state.offsets, **{f"{number}:{topic}": end for (topic, number), end in marks.items()}}
        hit("sink.before_publish")
        self._tables.commit(self.place, found, statement, replace(found.state, offsets=offsets).next(epoch))
        self._found = self._tables.load(self.place)
        self.shown = made
        self.published = time.monotonic()


class WholeLakeWriter(LakeWriter):
    """A lake of which readers see whole transactions of the source, all tables at one position, by its sets."""

    def __init__(self, tables: LakeTables, sink: str, task: int = 0, **more: Any) -> None:
        super().__init__(tables, sink, task, **more)
        self._sets = LakeSets(tables, sink)

    def claim(self, topics: Sequence[str]) -> None:
        self._sets.forget()
        super().claim(topics)
        with self._translated():
            self._sets.claim(self._spark(), self._epoch)

    def ledger(self) -> Mapping[tuple[str, int], int]:
        return {**super().ledger(), **self._sets.marks}

    def through(self) -> Mapping[str, int]:
        return consistent_sets.through(self)

    def ahead(self) -> Mapping[str, int]:
        return consistent_sets.ahead(self)

    def apply_all(self, batches: Iterable[SinkBatch]) -> Mapping[str, Any]:
        return consistent_sets.apply_all(self, batches)

    def rows(self, topic: str) -> TargetRows | None:
        """Returns the rows of a topic's table in the published set; None when no set holds it."""
        with self._translated():
            session = self._spark()
            for shown in self._sets.read(session).values():
                if topic in shown.members:
                    return read_place(session, self._tables, *found_of(shown.members[topic]))
        return None

    def found(self) -> list[tuple[LakeName, TableVersion]]:
        with self._translated():
            found = self._sets.read(self._spark())
        return [found_of(member) for shown in found.values() for member in shown.members.values()]

    # -- what sets ask for --------------------------------------------------------------------------------------------

    def valid(self) -> LakeSets:
        return self._sets

    def member(self, topic: str, state: Manifest) -> SetMember:
        return SetMember(self._places[topic], state, self._versions[topic])

    def publish(self, shown: Mapping[str, PublishedSet], marks: Marks) -> None:
        with self._translated(), self.alone(self._sets.place):
            self._sets.publish(self._spark(), self._stage, self._epoch, shown, marks)
            hit("sink.after_publish")

    # -- what maintenance asks for ------------------------------------------------------------------------------------

    def maintained(self) -> Mapping[str, LakeName]:
        """Returns none before the sets are known either: their versions would count for nothing."""
        return super().maintained() if self._sets.is_claimed else {}

    def kept_versions(self, place: LakeName) -> Collection[Any]:
        """Returns the versions that the valid set names, and the one that the next set will."""
        named = [member for shown in self._sets.shown.values() for member in shown.members.values()]
        found = {member.version for member in named if LakeName(*member.place) == place}
        # Another thread may add a topic meanwhile.
        topics = [topic for topic, mine in list(self._places.items()) if mine == place]
        return found | {self._versions[topic] for topic in topics if topic in self._versions}

    def shared_places(self) -> Sequence[LakeName]:
        return (self._sets.place,)


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


def _rows(made: Mapping[str, PublishedSet]) -> pa.Table:
    import pyarrow as pa

    rows = [
        {
            "source": source,
            "position": shown.through.position,
            "committed_at": dt.datetime.fromtimestamp(shown.through.ts_ms / 1000, dt.UTC),
            "left_out": list(shown.through.left_out),
            "topic": topic,
            "schema": member.place[0],
            "table": member.place[1],
            "version": member.version,
            "state": member.state.text(),
        }
        for source, shown in made.items()
        for topic, member in shown.members.items()
    ]
    return pa.Table.from_pylist(rows, schema=_schema())


def _shown(rows: Iterable[Mapping[str, Any]]) -> dict[str, PublishedSet]:
    out: dict[str, PublishedSet] = {}
    for row in rows:
        ts_ms = round(row["committed_at"].timestamp() * 1000)
        through = VisibleThrough(row["position"], ts_ms, tuple(row["left_out"] or ()))
        known = out.setdefault(row["source"], PublishedSet(through, {}))
        member = SetMember(LakeName(row["schema"], row["table"]), parse(row["state"]), row["version"])
        out[row["source"]] = replace(known, members={**known.members, row["topic"]: member})
    return out
