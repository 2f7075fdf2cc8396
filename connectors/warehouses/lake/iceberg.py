"""Iceberg tables (format 2). Rows are written into a snapshot that nobody sees, by files of this process or by Spark's SQL, which
becomes the table's in one step with the sink's state: a table that is not any more as it was found refuses that step."""

from __future__ import annotations

import itertools
import json
import logging
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cdcworker.connectors.api.table_batch import KEY
from cdcworker.connectors.sink_errors import LEDGER_MOVED
from cdcworker.connectors.warehouses import target_columns
from cdcworker.connectors.warehouses.lake import statements, table_places
from cdcworker.connectors.warehouses.lake.catalog.catalog_properties import admit_place
from cdcworker.connectors.warehouses.lake.file_faults import file_errors, is_refused
from cdcworker.connectors.warehouses.lake.iceberg_files import FilesCache, TableFiles, rows_under
from cdcworker.connectors.warehouses.lake.iceberg_parquet import UnfitFile, read_rows
from cdcworker.connectors.warehouses.lake.iceberg_rows import IcebergRows, MergedFiles, TableForm
from cdcworker.connectors.warehouses.lake.java import bucket_files, java_clients
from cdcworker.connectors.warehouses.lake.maintenance import orphans
from cdcworker.connectors.warehouses.lake.maintenance.plan import MEMORY_FACTOR, moved_rows
from cdcworker.connectors.warehouses.lake.maintenance.rewrite import DataFileView, FileRewrite, live_rows
from cdcworker.connectors.warehouses.lake.maintenance.snapshots import BY_PROPERTIES, ExpiryGoal, TableSize, expiry_of
from cdcworker.connectors.warehouses.lake.side_tables import OWN
from cdcworker.connectors.warehouses.lake.table_places import TablePlaces
from cdcworker.connectors.warehouses.lake.tables import (
    STATE,
    FoundRows,
    LakeName,
    NeededRows,
    RowChange,
    TableVersion,
    moved,
)
from cdcworker.connectors.warehouses.storage.object_store import ObjectStore
from cdcworker.connectors.warehouses.table_files.live_files import WantedRows
from cdcworker.connectors.warehouses.table_state import Manifest, late, parse
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.failpoints import hit

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

CATALOG = "cdc_lake"
HADOOP = "hadoop"
WAP = "spark.wap.id"
MAIN = "main"
RECENT = 100
"""Snapshots of others that may have come after ours."""
PROPERTIES = {
    "format-version": "2",
    # Only the rows of a batch are written, not every file that holds one of them.
    "write.merge.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.delete.mode": "merge-on-read",
    # Files of a batch are few; dealing its rows out by partition would be one more shuffle.
    "write.distribution-mode": "none",
    "write.merge.distribution-mode": "none",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "history.expire.max-snapshot-age-ms": str(24 * 3600 * 1000),
}
PLACES = ("write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path")
"""Properties of a table that say where its files are written."""
UNFIT = frozenset(("FLOAT", "DOUBLE", "STRUCT", "LIST", "MAP"))
"""Types of which Iceberg takes no identifier field."""
STAGED = {"write.wap.enabled": "true"}
_TOTALS = ("total-data-files", "total-files-size", "total-delete-files")
"""Of the summary of a snapshot."""


class IcebergTables:
    """`settings` are the catalog's properties, as Spark takes them behind `spark.sql.catalog.<name>.`; `roots` the folders
    of this machine in which its files may lie."""

    def __init__(
        self,
        settings: Mapping[str, str],
        roots: Sequence[str] = ("/",),
        *,
        by_files: bool = True,
        cache: FilesCache | None = None,
        store: ObjectStore | None = None,
    ) -> None:
        """`by_files`: rows are written as files where a table's form allows it; else always in SQL. `store` has the tables'
        files, also those that Java's clients write; None: Java's clients find files by their locations."""
        self._settings = dict(settings)
        self._roots = tuple(roots)
        self._by_files = by_files
        self._cache = cache or FilesCache()
        self._store = store
        self._unanswered: set[str] = set()
        """States of commits of which it is not known whether they were made, or will be."""
        self._session: SparkSession | None = None
        self._catalog: Any = None
        self._identifiers: Any = None
        self._metadata: Any = None
        self._spark_schemas: Any = None
        self._rows: IcebergRows | None = None
        self._loaded: dict[LakeName, Any] = {}
        self._forms: dict[LakeName, TableForm] = {}

    def open(self, session: SparkSession) -> None:
        """Set while it runs: settings of a start are process arguments, and these may hold a secret."""
        java_clients.check_clients(session, self._roots, self._store_places)
        if self._store is not None:
            bucket_files.serve(session, self._store)
        prefix = f"spark.sql.catalog.{CATALOG}"
        session.conf.set(prefix, "org.apache.iceberg.spark.SparkCatalog")
        # What somebody else commits has to be seen.
        settings = {**java_clients.settings_of(self._settings), "cache-enabled": "false"}
        if self._store is not None:
            settings["io-impl"] = java_clients.HADOOP_FILES
        for name, value in settings.items():
            session.conf.set(f"{prefix}.{name}", value)
        self._session = session
        # A name of Java's is looked up over there each time that it is said.
        self._identifiers, self._metadata = self._jvm.catalog.TableIdentifier, self._jvm.TableMetadata
        self._spark_schemas = self._jvm.spark.SparkSchemaUtil
        # The catalog is made by the first statement that names it, with the settings of that statement's session.
        with java_clients.catalog_classes(session, settings):
            session.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.{OWN}")
        self._catalog = self._jvm.spark.Spark3Util.loadIcebergCatalog(session._jsparkSession, CATALOG)
        self._rows = IcebergRows(self._jvm, session._jvm.java.lang.String, self._cache, self._places(session))
        self._loaded.clear()

    @property
    def _store_places(self) -> tuple[str, ...]:
        return () if self._store is None else (self._store.place(""),)

    def _places(self, session: SparkSession) -> TablePlaces:
        if self._store is not None:
            return table_places.in_store(self._store)
        files = str(session._jsparkSession.sessionState().newHadoopConf().get("fs.defaultFS") or "")
        return table_places.on_this_machine(files.startswith("file:"))

    def begin(self) -> None:
        if self._store is None:
            return
        if self._settings["type"] == HADOOP:
            # The next version of a table's metadata is made by who creates its file first.
            self._store.begin({"bucket": self._store.place("")})
        else:
            self._store.probe()

    def late(self, place: LakeName, found: TableVersion) -> CdcError | None:
        return late({"table": ".".join(place)}) if found.note in self._unanswered else None

    @property
    def _spark(self) -> SparkSession:
        assert self._session is not None
        return self._session

    @property
    def _jvm(self) -> Any:
        return self._spark._jvm.org.apache.iceberg

    def _id(self, place: LakeName) -> Any:
        return self._identifiers.parse(f"{place.schema}.{place.table}")

    # -- tables -------------------------------------------------------------------------------------------------------

    def places(self) -> Iterator[LakeName]:
        for space in self._catalog.listNamespaces():
            for found in self._catalog.listTables(space):
                yield LakeName(space.toString(), found.name())

    def load(self, place: LakeName) -> TableVersion | None:
        table = self._loaded[place] = self._load(place)
        if table is None:
            return None
        self._admit(table)
        fields = json.loads(self._spark_schemas.convert(table.schema()).json())
        snapshot, note = table.currentSnapshot(), table.properties().get(STATE) or ""
        empty = snapshot is None or snapshot.summary().get("total-records") == "0"
        version = None if snapshot is None else snapshot.snapshotId()
        return TableVersion(parse(note) if note else None, statements.types_of(fields), version, empty, note)

    def _load(self, place: LakeName) -> Any:
        """None: there is no such table."""
        from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

        try:
            return self._catalog.loadTable(self._id(place))
        except Py4JJavaError as exc:
            if exc.java_exception.getClass().getSimpleName() != "NoSuchTableException":
                raise
            return None

    def _admit(self, table: Any) -> None:
        """CdcError where a table's files would lie outside of the folders that are open to the connector: whoever may write
        into a lake's folder writes its tables' metadata too."""
        given = table.properties()
        for found in (table.location(), *map(given.get, PLACES)):
            if found is not None and not found.startswith(self._store_places):
                admit_place(found, self._roots)

    def create(self, place: LakeName, columns: str, state: Manifest | None) -> None:
        properties = PROPERTIES if state is None else {**PROPERTIES, **STAGED, STATE: state.text()}
        self._spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.{statements.quoted(place.schema)}")
        self._spark.sql(
            f"CREATE TABLE IF NOT EXISTS {self.name(place)} ({columns}) USING iceberg TBLPROPERTIES ({statements.listed(properties)})"
        )

    def take_over(self, place: LakeName) -> None:
        self._spark.sql(f"ALTER TABLE {self.name(place)} SET TBLPROPERTIES ({statements.listed(STAGED)})")

    def name(self, place: LakeName) -> str:
        return f"{CATALOG}.{statements.quoted(place.schema)}.{statements.quoted(place.table)}"

    def at(self, place: LakeName, found: TableVersion) -> str:
        return self.name(place) + ("" if found.version is None else f" VERSION AS OF {found.version}")

    def identify(self, place: LakeName, found: TableVersion, names: tuple[str, ...]) -> None:
        """Sets the identifier fields, which have to be required and cannot be floating-point numbers: a key with such a column
        has none. Neither the snapshot nor the sink's state changes."""
        table = self._catalog.loadTable(self._id(place))
        schema = table.schema()
        kinds = [str(schema.findField(name).type().typeId()) for name in names]
        wanted = set() if UNFIT.intersection(kinds) else set(names)
        known = set(schema.identifierFieldNames())
        if wanted == known:
            return
        if wanted and not found.empty and self._has_nulls(place, names):
            log.warning("rows without a key, no identifier fields table=%s", ".".join(place))
            wanted = set()
        if wanted == known:
            return
        update = table.updateSchema().allowIncompatibleChanges()
        for name in sorted(wanted - known):
            update = update.requireColumn(name)
        for name in sorted(known - wanted):
            update = update.makeColumnOptional(name)
        identifiers = self._spark._jvm.java.util.ArrayList()
        for name in sorted(wanted):
            identifiers.add(name)
        update.setIdentifierFields(identifiers).commit()

    def _has_nulls(self, place: LakeName, names: tuple[str, ...]) -> bool:
        where = " OR ".join(f"{statements.quoted(name)} IS NULL" for name in names)
        return bool(self._spark.sql(f"SELECT 1 FROM {self.name(place)} WHERE {where} LIMIT 1").take(1))

    # -- commits ------------------------------------------------------------------------------------------------------

    def commit(self, place: LakeName, found: TableVersion, statement: str, state: Manifest) -> Any:
        mark = uuid.uuid4().hex
        if statement:
            self._spark.conf.set(WAP, mark)
            try:
                self._spark.sql(statement)
            finally:
                self._spark.conf.unset(WAP)
        table = self._catalog.loadTable(self._id(place))
        staged = _staged(table, mark) if statement else None
        # A snapshot of no rows: a catalog that compares snapshots, and nothing else, then tells two states apart.
        made = table.newAppend().apply() if staged is None else staged.snapshotId()
        hit("sink.before_commit")
        _require_parent(place, staged or made, found)
        self._publish(place, table, found, made, state.text())
        return (staged or made).snapshotId()

    def _publish(self, place: LakeName, table: Any, found: TableVersion, snapshot: Any, note: str) -> None:
        """The catalog exchanges what is there for what we make of it, or refuses."""
        operations = table.operations()
        base = operations.current()
        now = base.currentSnapshot()
        if (base.properties().get(STATE) or "") != found.note:
            raise moved(place)
        if (None if now is None else now.snapshotId()) != found.version:
            raise moved(place)
        made = self._metadata.buildFrom(base).setBranchSnapshot(snapshot, MAIN)
        if note != found.note:
            properties = self._spark._jvm.java.util.HashMap()
            properties.put(STATE, note)
            made = made.setProperties(properties)
        try:
            operations.commit(base, made.build())
        except Exception as exc:
            self._unanswered.add(note)
            if java_clients.REFUSES in str(exc):
                raise
            if "CommitFailedException" in str(exc):
                raise moved(place) from exc
            if "CommitStateUnknownException" not in str(exc):
                raise
            again = self.load(place)
            # A state that stays says nothing of a commit.
            is_made = again is not None and (note != found.note or again.version == snapshot.snapshotId())
            if again is None or again.note != note or not is_made:
                raise moved(place) from exc

    # -- rows as files ------------------------------------------------------------------------------------------------

    def writes_rows(self, place: LakeName, found: TableVersion, schema: pa.Schema) -> bool:
        table, rows = self._loaded.get(place), self._rows
        if not self._by_files or table is None or rows is None:
            return False
        # Its columns may have been changed since.
        table.refresh()
        form = rows.form(table)
        if form is None or not form.holds(schema):
            return False
        if KEY in schema.names:
            form = replace(form, position=target_columns.position_of(schema))
            try:
                self._files(place, found, form)
            except UnfitFile:
                return False
        self._forms[place] = form
        return True

    def _files(self, place: LakeName, found: TableVersion, form: TableForm) -> TableFiles:
        assert self._rows is not None
        table = self._loaded[place]
        now = table.currentSnapshot()
        if (None if now is None else now.snapshotId()) != found.version:
            raise moved(place)
        return self._rows.files(place, table, found.version, form)

    def current(
        self,
        place: LakeName,
        found: TableVersion,
        schema: pa.Schema,
        keys: pa.Array,
        names: Collection[str],
        needed: NeededRows | None = None,
    ) -> FoundRows:
        form = self._forms[place]
        return rows_under(self._files(place, found, form), form.columns, schema, WantedRows(keys, names, needed))

    def commit_rows(self, place: LakeName, found: TableVersion, change: RowChange, state: Manifest | None) -> Any:
        assert self._rows is not None
        rows, table, form = self._rows, self._loaded[place], self._forms[place]
        if state is None:
            return rows.append(place, table, form, found.version, change.put)
        files = self._files(place, found, form) if KEY in change.put.schema.names else None
        written = rows.write(table, form, files, change)
        try:
            snapshot = rows.snapshot(table, files, written)
            hit("sink.before_commit")
            _require_parent(place, snapshot, found)
        except Exception:
            written.discard()
            raise
        # What becomes of a commit that fails from here on may be unknown: its files stay.
        self._publish(place, table, found, snapshot, state.text())
        version = snapshot.snapshotId()
        if files is None:
            return version
        rows.committed(place, files, version, written, change.put)
        note = state.text()
        return self._merge_files(place, replace(found, version=version, note=note), files)

    def _merge_files(self, place: LakeName, found: TableVersion, files: TableFiles) -> Any:
        """Makes a few files of many. Nothing depends on it: where it fails a later batch tries again."""
        assert self._rows is not None
        table, version = self._loaded[place], found.version
        try:
            done = self._rows.merge_files(table, self._forms[place], files)
            if done is None:
                return version
            _require_parent(place, done.snapshot, found)
            self._publish(place, table, found, done.snapshot, found.note)
            version = done.snapshot.snapshotId()
            self._rows.merged(place, files, done)
        except Exception as exc:  # noqa: BLE001 - whatever it is
            log.warning("files were not merged table=%s error=%s", ".".join(place), type(exc).__name__)
            self._rows.forget(place)
        return version

    # -- maintenance --------------------------------------------------------------------------------------------------

    def size(self, place: LakeName) -> TableSize | None:
        table = self._load(place)
        snapshot = None if table is None else table.currentSnapshot()
        if snapshot is None:
            return None if table is None else TableSize(0, 0, 0)
        told = snapshot.summary()
        files, size, deletes = (told.get(name) for name in _TOTALS)
        return None if files is None or size is None else TableSize(int(files), int(size), int(deletes or 0))

    def file_views(self, place: LakeName, found: TableVersion, schema: pa.Schema) -> Sequence[DataFileView] | None:
        if not self.writes_rows(place, found, schema):
            return None
        try:
            known = self._files(place, found, self._forms[place])
        except UnfitFile:
            return None
        return [
            DataFileView(file.name, file, file.bytes, file.rows, MEMORY_FACTOR * file.bytes, known.mask_or_none(number))
            for number, file in known.files.items()
        ]

    def rewrite(self, place: LakeName, files: Sequence[DataFileView], schema: pa.Schema) -> FileRewrite | None:
        assert self._rows is not None
        form, store = self._forms[place], self._rows.storage
        with file_errors():
            found = live_rows(files, lambda view: read_rows(store, view.file.path, form.columns))
        if found is None:
            return None
        taken, rows = found
        written = self._rows.write(self._loaded[place], form, None, RowChange(rows))
        hit("maintenance.files_written")
        own = rows.select([name for name in (KEY, form.position) if name and name in rows.column_names])
        return FileRewrite(taken, written.data.bytes if written.data else 0, (form, own, written))

    def commit_rewrite(self, place: LakeName, found: TableVersion, schema: pa.Schema, done: FileRewrite) -> Any:
        assert self._rows is not None
        form, own, written = done.made
        try:
            if not self.writes_rows(place, found, schema) or self._forms[place] != form:
                raise moved(place)
            table, files = self._loaded[place], self._files(place, found, form)
            numbers = files.numbers_of([view.name for view in done.files])
            if numbers is None:
                raise moved(place)
            gone = moved_rows(
                [view.gone for view in done.files],
                [files.gone[number] for number in numbers],
                [view.rows for view in done.files],
            )
            if gone is None:
                raise moved(place)
            if len(gone):
                self._rows.delete_own(table, written, gone)
            snapshot = self._rows.replacing(table, files, numbers, written)
            hit("maintenance.before_commit")
            _require_parent(place, snapshot, found)
            self._publish(place, table, found, snapshot, found.note)
        except CdcError as exc:
            if exc.code == LEDGER_MOVED and is_refused(exc):
                written.discard()
            raise
        version = snapshot.snapshotId()
        hit("maintenance.after_commit")
        # An answer that was lost may be that of a commit which was refused: the state says nothing of it, which stays.
        table.refresh()
        if table.snapshot(version) is None:
            self._rows.forget(place)
            raise moved(place)
        self._rows.merged(place, files, MergedFiles(numbers, own, written, snapshot))
        return version

    def tend(self, place: LakeName, goal: ExpiryGoal = BY_PROPERTIES, kept: Collection[Any] = ()) -> int:
        """Expires snapshots, with the files that they alone need."""
        table = self._load(place)
        if table is None:
            return 0
        told = json.loads(self._jvm.TableMetadataParser.toJson(table.operations().current()))
        wanted = expiry_of(told, goal, kept, time.time_ns() // 1_000_000)
        if wanted is None:
            return 0
        hit("maintenance.before_expiry")
        update = table.expireSnapshots().expireOlderThan(wanted.before_ms).retainLast(wanted.kept_min)
        update.commit()
        hit("maintenance.after_expiry")
        return wanted.count

    def remove_orphans(self, place: LakeName, older_s: float, goal: ExpiryGoal, kept: Collection[Any]) -> int:
        """Snapshots that are there are those that readers need, so `goal` and `kept` say nothing more."""
        assert self._rows is not None
        table = self._load(place)
        home = None if table is None else self._rows.home(table)
        if home is None:
            return 0
        self._admit(table)
        candidates = orphans.old_files(home, older_s)
        # What was committed after the files were listed counts.
        table = self._load(place) if candidates else None
        if table is None or self._rows.home(table) != home:
            return 0
        return orphans.remove(orphans.unnamed(candidates, self._rows.named(table)))

    def another(self) -> IcebergTables:
        made = IcebergTables(self._settings, self._roots, by_files=self._by_files, cache=self._cache, store=self._store)
        made._unanswered = self._unanswered
        return made


def _staged(table: Any, mark: str) -> Any:
    """The snapshot that carries the mark; it is among the last ones."""
    for snapshot in itertools.islice(reversed(table.operations().current().snapshots()), RECENT):
        if snapshot.summary().get("wap.id") == mark:
            return snapshot
    return None


def _require_parent(place: LakeName, snapshot: Any, found: TableVersion) -> None:
    if snapshot.parentId() != found.version:
        raise moved(place)
