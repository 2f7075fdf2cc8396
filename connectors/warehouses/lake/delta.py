"""Delta tables through Spark. Each commit holds the sink's state in its user metadata, and the state's number as Delta's
transaction version: Delta skips a statement whose number is already committed, and refuses one of two concurrent ones."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cdcworker.connectors.sink_errors import LEDGER_LOST, LEDGER_MOVED, from_lake
from cdcworker.connectors.warehouses.lake import statements
from cdcworker.connectors.warehouses.lake.delta_files import orphan_files
from cdcworker.connectors.warehouses.lake.delta_files.commit_info import COMPACTION, actions_of
from cdcworker.connectors.warehouses.lake.delta_files.file_table import FileTable
from cdcworker.connectors.warehouses.lake.delta_files.file_tables import FileTables
from cdcworker.connectors.warehouses.lake.delta_files.orphan_files import OrphanGoal
from cdcworker.connectors.warehouses.lake.delta_files.table_features import FileLayout
from cdcworker.connectors.warehouses.lake.delta_files.table_log import TableSnapshot, UnreadableLog
from cdcworker.connectors.warehouses.lake.file_faults import file_errors
from cdcworker.connectors.warehouses.lake.java import bucket_files, java_clients
from cdcworker.connectors.warehouses.lake.maintenance.rewrite import DataFileView, FileRewrite
from cdcworker.connectors.warehouses.lake.maintenance.snapshots import BY_PROPERTIES, ExpiryGoal, TableSize
from cdcworker.connectors.warehouses.lake.tables import (
    STATE,
    FoundRows,
    LakeName,
    NeededRows,
    RowChange,
    TableVersion,
    moved,
)
from cdcworker.connectors.warehouses.storage.files import Storage
from cdcworker.connectors.warehouses.storage.local_disk import LocalDisk
from cdcworker.connectors.warehouses.storage.object_store import ObjectStore
from cdcworker.connectors.warehouses.table_files.live_files import WantedRows
from cdcworker.connectors.warehouses.table_state import Manifest, late, parse
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.failpoints import hit

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

APPLICATION = "cdcworker"
ADD_TRIES = 10
PREFIX = "spark.databricks.delta."
PROPERTIES = {
    # Columns are renamed, and have any name.
    "delta.columnMapping.mode": "name",
    "delta.enableTypeWidening": "true",
    # Only the rows of a batch are written, not every file that holds one of them.
    "delta.enableDeletionVectors": "true",
    # A column of that type may come later.
    "delta.feature.timestampNtz": "supported",
    # The commit that holds the offsets stays until they have been copied: `tend` cleans the log.
    "delta.enableExpiredLogCleanup": "false",
}
PLAIN_PROPERTIES = {"delta.enableExpiredLogCleanup": "false"}
BUCKET_PROPERTIES = {
    # A look at the log lists it whole: a month of commits would be hundreds of requests. Delta takes no less than it keeps
    # files for that no version names any more.
    "delta.logRetentionDuration": "interval 7 days",
}
LOCAL_TIME = "timestamp_ntz"
KEPT_FOR_S = 3600.0
"""A commit so young is never cleaned out of a log."""
CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"


def local_files(root: str) -> Storage | None:
    """Returns the files below a folder of this machine; None: it is the URI of another store."""
    return LocalDisk(root) if root.startswith("/") and "://" not in root else None


class DeltaTables:
    """Tables by their paths: `<root>/<schema>/<table>`. `roots` are the folders of this machine in which files may lie."""

    def __init__(
        self, root: str, roots: Sequence[str] = ("/",), plain: bool = False, files: FileTables | None = None
    ) -> None:
        """`plain`: new tables get no feature that an older reader does not know. `files` are the tables whose files can be read
        here, for several views of one lake; by default those of a folder of this machine."""
        self._root = root.rstrip("/")
        self._roots = tuple(roots)
        self._plain = plain
        self._file_tables = files or FileTables(local_files(self._root))
        found = self._file_tables.files
        self._bucket = found if isinstance(found, ObjectStore) else None
        self._session: SparkSession | None = None

    def open(self, session: SparkSession) -> None:
        java_clients.check_clients(session, self._roots)
        if self._bucket is not None:
            bucket_files.serve(session, self._bucket)
            # A file of sums beside each commit is a request more, and no reader needs it.
            session.conf.set(f"{PREFIX}writeChecksumFile.enabled", "false")
        session.conf.set("spark.sql.catalog.spark_catalog", CATALOG)
        # The log of a table is read by one task: with Delta's fifty each look at it would take seconds.
        session.conf.set(f"{PREFIX}snapshotPartitions", "1")
        # The rows to merge are in a file that nobody changes: they need no copy of Spark's own before they are read twice.
        session.conf.set(f"{PREFIX}merge.materializeSource", "none")
        self._session = session

    @property
    def _spark(self) -> SparkSession:
        assert self._session is not None
        return self._session

    @property
    def _jvm(self) -> Any:
        return self._spark._jvm

    def _path(self, place: LakeName) -> str:
        return f"{self._root}/{place.schema}/{place.table}"

    def _files(self, path: str) -> tuple[Any, Any]:
        """A Hadoop file system and the path in it."""
        found = self._jvm.org.apache.hadoop.fs.Path(path)
        return found.getFileSystem(self._spark._jsparkSession.sessionState().newHadoopConf()), found

    # -- tables -------------------------------------------------------------------------------------------------------

    def places(self) -> Iterator[LakeName]:
        if self._bucket is not None:
            yield from _places(self._bucket)
            return
        system, pattern = self._files(f"{self._root}/*/*/_delta_log")
        for found in system.globStatus(pattern) or ():
            table = found.getPath().getParent()
            yield LakeName(table.getParent().getName(), table.getName())

    def load(self, place: LakeName) -> TableVersion | None:
        files = self._file_tables.table(place)
        if files is not None:
            with contextlib.suppress(UnreadableLog, OSError, ValueError), files.lock:
                return self._loaded(place, files)
        system, folder = self._files(f"{self._path(place)}/_delta_log")
        if not system.exists(folder):
            return None
        _, snapshot = self._log(place)
        version = int(snapshot.version())
        if version < 0:
            return None
        metadata, done = snapshot.metadata(), snapshot.transactions().get(APPLICATION)
        kept = metadata.configuration().get(STATE)
        noted = _Noted(str(metadata.id()), version, str(kept.get()) if kept.isDefined() else "")
        noted.done = int(done.get()) if done.isDefined() else None
        note = self._note(place, noted)
        fields = json.loads(metadata.schema().json())
        empty = not note and snapshot.numOfFiles() == 0
        return TableVersion(parse(note) if note else None, statements.types_of(fields), version, empty, note)

    def _loaded(self, place: LakeName, files: FileTable) -> TableVersion | None:
        """The same without Java."""
        snapshot = files.log.snapshot()
        if snapshot is None:
            return None
        metadata = snapshot.metadata
        kept = str(metadata.get("configuration", {}).get(STATE, ""))
        done = snapshot.transactions.get(APPLICATION)
        note = self._note(place, _Noted(str(metadata["id"]), snapshot.version, kept, done))
        fields = files.columns(snapshot, statements.types_of)
        return TableVersion(
            parse(note) if note else None, fields, snapshot.version, not note and not snapshot.files, note
        )

    def _log(self, place: LakeName) -> tuple[Any, Any]:
        """A table's log and its newest snapshot. Delta asks this thread's active session whether it is configured, which in a
        thread that has run no statement yet is another one."""
        self._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(self._spark._jsparkSession)
        log = self._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(self._spark._jsparkSession, self._path(place))
        none = self._jvm.scala.Option.empty()
        return log, log.update(False, none, none)

    def _note(self, place: LakeName, table: _Noted) -> str:
        """Returns the state in the newest commit that has one (commits that compact or change columns have none); where that
        commit is no longer in the log, the copy in the table's properties."""
        known, note = self._file_tables.seen.get(table.id, (-1, ""))
        for number in range(table.version, known, -1):
            found = self._commit_note(place, number)
            if found is None:
                note = _kept(place, table)
                break
            if found:
                note = found
                break
        self._file_tables.seen[table.id] = table.version, note
        return note

    def _commit_note(self, place: LakeName, number: int) -> str | None:
        """None: the commit is not in the log any more."""
        files = self._file_tables.table(place)
        text = self._commit_text(place, number) if files is None else files.log.text(number)
        if text is None:
            return None
        for line in text.splitlines():
            action = json.loads(line)
            noted = action.get("commitInfo", {}).get("userMetadata") or ""
            if noted.startswith("{") and STATE in (said := json.loads(noted)):
                return str(said[STATE])
            kept = action.get("metaData", {}).get("configuration", {}).get(STATE)
            if number == 0 and kept:
                return str(kept)
        return ""

    def _commit_text(self, place: LakeName, number: int) -> str | None:
        system, path = self._files(f"{self._path(place)}/_delta_log/{number:020d}.json")
        if not system.exists(path):
            return None
        stream = system.open(path)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def create(self, place: LakeName, columns: str, state: Manifest | None) -> None:
        properties = self._properties if state is None else {**self._properties, STATE: state.text()}
        self._spark.sql(
            f"CREATE TABLE IF NOT EXISTS {self.name(place)} ({columns}) USING delta"
            f" TBLPROPERTIES ({statements.listed(properties)})"
        )

    @property
    def _properties(self) -> dict[str, str]:
        properties = PLAIN_PROPERTIES if self._plain else PROPERTIES
        return properties if self._bucket is None else {**properties, **BUCKET_PROPERTIES}

    def declare(self, place: LakeName, found: TableVersion, kinds: Collection[str]) -> None:
        """Lets a plain table have columns of a type that is a feature of its own."""
        if LOCAL_TIME in kinds and LOCAL_TIME not in found.columns.values():
            feature = statements.listed({"delta.feature.timestampNtz": "supported"})
            self._spark.sql(f"ALTER TABLE {self.name(place)} SET TBLPROPERTIES ({feature})")

    def take_over(self, place: LakeName) -> None:
        self._spark.sql(f"ALTER TABLE {self.name(place)} SET TBLPROPERTIES ({statements.listed(self._properties)})")

    def name(self, place: LakeName) -> str:
        return f"delta.{statements.quoted(self._path(place))}"

    def at(self, place: LakeName, found: TableVersion) -> str:
        return f"{self.name(place)} VERSION AS OF {found.version}"

    # -- commits ------------------------------------------------------------------------------------------------------

    def commit(self, place: LakeName, found: TableVersion, statement: str, state: Manifest) -> Any:
        if not statement and self._reads(place):
            return self._committed(place, found, None, state)
        hit("sink.before_commit")
        noted = {
            "write.txnAppId": APPLICATION,
            "write.txnVersion": str(state.version),
            "commitInfo.userMetadata": json.dumps({STATE: state.text()}),
        }
        for name, value in noted.items():
            self._spark.conf.set(PREFIX + name, value)
        try:
            self._spark.sql(statement or f"INSERT INTO {self.name(place)} SELECT * FROM {self.name(place)} WHERE false")
        except Exception as exc:
            refused = from_lake(exc, {"table": ".".join(place)})
            if refused is None or refused.code != LEDGER_MOVED:
                raise
            again = self.load(place) if self._bucket is not None else None
            raise (again and self.late(place, again)) or refused from exc
        finally:
            for name in noted:
                self._spark.conf.unset(PREFIX + name)
        again = self.load(place)
        if again is None or again.note != state.text():
            raise (again and self.late(place, again)) or moved(place)
        return again.version

    def begin(self) -> None:
        if self._bucket is not None:
            self._bucket.begin({"bucket": self._bucket.place("")})

    def late(self, place: LakeName, found: TableVersion) -> CdcError | None:
        files = self._file_tables.table(place)
        is_late = files is not None and files.log.is_late(found.version)
        return late({"table": ".".join(place)}) if is_late else None

    # -- rows as files ------------------------------------------------------------------------------------------------

    def writes_rows(self, place: LakeName, found: TableVersion, schema: pa.Schema) -> bool:
        files = self._file_tables.table(place)
        if files is None:
            return False
        try:
            with files.lock:
                return files.takes(files.log.snapshot(), {each.name: statements.type_of(each.type) for each in schema})
        except (UnreadableLog, OSError, ValueError):
            return False

    def _reads(self, place: LakeName) -> bool:
        """Returns whether commits to the table can be made here."""
        files = self._file_tables.table(place)
        if files is None:
            return False
        try:
            with files.lock:
                return files.is_known(files.log.snapshot())
        except (UnreadableLog, OSError, ValueError):
            return False

    def current(
        self,
        place: LakeName,
        found: TableVersion,
        schema: pa.Schema,
        keys: pa.Array,
        names: Collection[str],
        needed: NeededRows | None = None,
    ) -> FoundRows:
        with self._reading(place) as files:
            snapshot, layout = _same(place, found, files)
            return FoundRows(*files.find(snapshot, layout, schema, WantedRows(keys, names, needed)))

    def commit_rows(self, place: LakeName, found: TableVersion, change: RowChange, state: Manifest | None) -> Any:
        return self._added(place, change) if state is None else self._committed(place, found, change, state)

    def _committed(self, place: LakeName, found: TableVersion, change: RowChange | None, state: Manifest) -> Any:
        """`change` None: the state alone."""
        hit("sink.before_commit")
        noted = json.dumps({STATE: state.text()})
        with self._reading(place) as files:
            snapshot, layout = _same(place, found, files)
            put, gone = (None, None) if change is None else (change.put, change.gone)
            told = actions_of(snapshot, noted, (APPLICATION, state.version))
            made = files.commit(snapshot, layout, told, put, gone)
            if made is None:
                raise moved(place)
            self._file_tables.seen[str(made.metadata["id"])] = made.version, state.text()
        if files.wants_checkpoint(made):
            self._checkpoint(place, made)
        return made.version

    def _added(self, place: LakeName, change: RowChange) -> Any:
        """Rows go to a table whose commits depend on nothing."""
        for _ in range(ADD_TRIES):
            with self._reading(place) as files:
                snapshot = files.log.snapshot()
                layout = None if snapshot is None else files.layout(snapshot)
                if snapshot is None or layout is None:
                    break
                made = files.commit(snapshot, layout, actions_of(snapshot), change.put)
            if made is not None:
                if files.wants_checkpoint(made):
                    self._checkpoint(place, made)
                return made.version
        raise moved(place)

    @contextlib.contextmanager
    def _reading(self, place: LakeName) -> Iterator[FileTable]:
        """A table whose files somebody reads here. What is wrong with them Spark's SQL tells better: it is used next."""
        import pyarrow as pa

        files = self._file_tables.table(place)
        assert files is not None
        try:
            with files.lock:
                yield files
        except (UnreadableLog, OSError, EOFError, ValueError, LookupError, pa.ArrowException) as exc:
            files.leave()
            log.warning(
                "the files of a table could not be read or written here table=%s error=%s",
                ".".join(place),
                type(exc).__name__,
            )
            raise moved(place) from exc

    def _checkpoint(self, place: LakeName, made: TableSnapshot) -> None:
        """Readers begin with it. It is no part of the commit, and the next one is made where this one fails."""
        try:
            log_of_table, _ = self._log(place)
            log_of_table.createCheckpointAtVersion(made.version)
        except Exception as exc:  # noqa: BLE001 - whatever it is, the rows are there
            log.warning("no checkpoint was made table=%s error=%s", ".".join(place), type(exc).__name__)

    # -- maintenance --------------------------------------------------------------------------------------------------

    def size(self, place: LakeName) -> TableSize | None:
        files = self._file_tables.table(place)
        if files is None:
            return None
        with contextlib.suppress(UnreadableLog, OSError, ValueError), files.lock:
            snapshot = files.log.snapshot()
            live = {} if snapshot is None else snapshot.files
            vectors = sum("deletionVector" in add for add in live.values())
            return TableSize(len(live), sum(int(add["size"]) for add in live.values()), vectors)
        return None

    def file_views(self, place: LakeName, found: TableVersion, schema: pa.Schema) -> Sequence[DataFileView] | None:
        if not self.writes_rows(place, found, schema):
            return None
        with self._reading(place) as files:
            return files.views(*_same(place, found, files))

    def rewrite(self, place: LakeName, files: Sequence[DataFileView], schema: pa.Schema) -> FileRewrite | None:
        table = self._file_tables.table(place)
        assert table is not None
        with table.lock:
            snapshot = table.log.snapshot()
            layout = None if snapshot is None else table.layout(snapshot)
        if layout is None:
            raise moved(place)
        with file_errors():
            found = table.rewrite(layout, schema, files)
        if found is None:
            return None
        hit("maintenance.files_written")
        taken, made = found
        return FileRewrite(taken, 0 if made is None else int(made[0]["size"]), (layout, made))

    def commit_rewrite(self, place: LakeName, found: TableVersion, schema: pa.Schema, done: FileRewrite) -> Any:
        written_as, made = done.made
        with self._reading(place) as files:
            snapshot, layout = _same(place, found, files)
            after = None
            if layout == written_as:
                told = actions_of(snapshot, operation=COMPACTION)
                after = files.replace(snapshot, layout, told, done.files, made)
            if after is None:
                files.discard(made)
                raise moved(place)
        if files.wants_checkpoint(after):
            self._checkpoint(place, after)
        return after.version

    def tend(self, place: LakeName, goal: ExpiryGoal = BY_PROPERTIES, kept: Collection[Any] = ()) -> int:
        """Copies the state into the table's properties, then removes expired log entries. How long those are kept, the table's
        properties tell; they stay as well while one of the versions `kept` is not the newest one and some time has passed."""
        found = self.load(place)
        if found is None:
            return 0
        log, snapshot = self._log(place)
        noted = snapshot.metadata().configuration().get(STATE)
        files = self._file_tables.table(place)
        if found.note and not (noted.isDefined() and str(noted.get()) == found.note):
            properties = statements.listed({STATE: found.note})
            self._spark.sql(f"ALTER TABLE {self.name(place)} SET TBLPROPERTIES ({properties})")
            log, snapshot = self._log(place)
            if files is not None:
                log.createCheckpointAtVersion(snapshot.version())
        if files is not None and files.log.has_older([at for at in kept if at < found.version], KEPT_FOR_S):
            return 0
        hit("maintenance.before_expiry")
        defaults = [getattr(log, f"cleanUpExpiredLogs$default${number}")() for number in (2, 3, 4)]
        before = 0 if files is None else files.log.commits()
        log.cleanUpExpiredLogs(snapshot, *defaults)
        hit("maintenance.after_expiry")
        return 0 if files is None else max(0, before - files.log.commits())

    def remove_orphans(self, place: LakeName, older_s: float, goal: ExpiryGoal, kept: Collection[Any]) -> int:
        """The files of versions that were the newest one within the kept age stay, and those of the versions `kept`."""
        table = self._file_tables.table(place)
        if table is None:
            return 0
        removed = self._file_tables.removed(place)
        return orphan_files.remove(table, removed, OrphanGoal(older_s, goal.age_s, min(kept, default=None)))

    def another(self) -> DeltaTables:
        return DeltaTables(self._root, self._roots, self._plain, self._file_tables)


@dataclass(slots=True)
class _Noted:
    """A table at a version; `kept`: the copy of the state in its properties; `done`: the number of the last state, if any."""

    id: str
    version: int
    kept: str
    done: int | None = None


def _kept(place: LakeName, table: _Noted) -> str:
    """Returns the copy of the state in the table's properties. CdcError `spark.ledger_lost` if a later state was committed and
    its commit is gone."""
    if table.done is not None and (not table.kept or parse(table.kept).version != table.done):
        raise CdcError(LEDGER_LOST, "the commit that holds the offsets is gone", where={"table": ".".join(place)})
    return table.kept


def _same(place: LakeName, found: TableVersion, files: FileTable) -> tuple[TableSnapshot, FileLayout]:
    """The table as it was found; its columns may have changed since. CdcError LEDGER_MOVED when more has."""
    snapshot = files.log.snapshot()
    layout = None if snapshot is None else files.layout(snapshot)
    if snapshot is None or layout is None or snapshot.changed > found.version:
        is_late = snapshot is not None and files.log.is_late(snapshot.version)
        raise late({"table": ".".join(place)}) if is_late else moved(place)
    return snapshot, layout


def _places(files: Storage) -> Iterator[LakeName]:
    """The places where the files of a lake may have a table: whether there is one, its log says when it is loaded."""
    for schema in files.folders(""):
        yield from (LakeName(schema, table) for table in files.folders(schema))
