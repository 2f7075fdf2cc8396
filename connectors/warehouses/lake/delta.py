"""Delta tables through Spark. Each commit holds the sink's state in its user metadata, and the state's number as Delta's
transaction version: Delta skips a statement whose number is already committed, and refuses one of two concurrent ones."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from cdcworker.connectors.sink_errors import LEDGER_LOST, LEDGER_MOVED, from_lake
from cdcworker.connectors.warehouses.lake import java_clients, statements
from cdcworker.connectors.warehouses.lake.tables import STATE, TableName, TableVersion
from cdcworker.connectors.warehouses.table_state import Manifest, parse
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.failpoints import hit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

APPLICATION = "cdcworker"
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
CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"


class DeltaTables:
    """Tables by their paths: `<root>/<schema>/<table>`. `roots` are the folders of this machine in which files may lie."""

    def __init__(self, root: str, roots: Sequence[str] = ("/",)) -> None:
        self._root = root.rstrip("/")
        self._roots = tuple(roots)
        self._session: SparkSession | None = None
        self._seen: dict[str, tuple[int, str]] = {}
        """By the table's identity: up to which commit its log has been read for which state."""

    def open(self, session: SparkSession) -> None:
        java_clients.check_clients(session, self._roots)
        session.conf.set("spark.sql.catalog.spark_catalog", CATALOG)
        # The log of a table is read by one task: with Delta's fifty each look at it would take seconds.
        session.conf.set(f"{PREFIX}snapshotPartitions", "1")
        # The rows to merge are in a file that nobody changes: they need no copy of Spark's own before they are read twice.
        session.conf.set(f"{PREFIX}merge.materializeSource", "none")
        self._session = session
        self._seen.clear()

    @property
    def _spark(self) -> SparkSession:
        assert self._session is not None
        return self._session

    @property
    def _jvm(self) -> Any:
        return self._spark._jvm

    def _path(self, place: TableName) -> str:
        return f"{self._root}/{place.schema}/{place.table}"

    def _files(self, path: str) -> tuple[Any, Any]:
        """A Hadoop file system and the path in it."""
        found = self._jvm.org.apache.hadoop.fs.Path(path)
        return found.getFileSystem(self._spark._jsparkSession.sessionState().newHadoopConf()), found

    # -- tables -------------------------------------------------------------------------------------------------------

    def places(self) -> Iterator[TableName]:
        system, pattern = self._files(f"{self._root}/*/*/_delta_log")
        for found in system.globStatus(pattern) or ():
            table = found.getPath().getParent()
            yield TableName(table.getParent().getName(), table.getName())

    def load(self, place: TableName) -> TableVersion | None:
        system, folder = self._files(f"{self._path(place)}/_delta_log")
        if not system.exists(folder):
            return None
        _, snapshot = self._log(place)
        version = int(snapshot.version())
        if version < 0:
            return None
        note = self._note(place, snapshot, version)
        fields = json.loads(snapshot.metadata().schema().json())
        empty = not note and snapshot.numOfFiles() == 0
        return TableVersion(parse(note) if note else None, statements.types_of(fields), version, empty, note)

    def _log(self, place: TableName) -> tuple[Any, Any]:
        """A table's log and its newest snapshot. Delta asks this thread's active session whether it is configured, which in a
        thread that has run no statement yet is another one."""
        self._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(self._spark._jsparkSession)
        log = self._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(self._spark._jsparkSession, self._path(place))
        none = self._jvm.scala.Option.empty()
        return log, log.update(False, none, none)

    def _note(self, place: TableName, snapshot: Any, version: int) -> str:
        """Returns the state in the newest commit that has one (commits that compact or change columns have none); where that
        commit is no longer in the log, the copy in the table's properties."""
        identity = str(snapshot.metadata().id())
        known, note = self._seen.get(identity, (-1, ""))
        for number in range(version, known, -1):
            found = self._commit_note(place, number)
            if found is None:
                note = self._kept(place, snapshot)
                break
            if found:
                note = found
                break
        self._seen[identity] = version, note
        return note

    def _commit_note(self, place: TableName, number: int) -> str | None:
        """None: the commit is not in the log any more."""
        system, path = self._files(f"{self._path(place)}/_delta_log/{number:020d}.json")
        if not system.exists(path):
            return None
        stream = system.open(path)
        try:
            text = self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
        finally:
            stream.close()
        for line in text.splitlines():
            action = json.loads(line)
            noted = action.get("commitInfo", {}).get("userMetadata") or ""
            if noted.startswith("{") and STATE in (said := json.loads(noted)):
                return str(said[STATE])
            kept = action.get("metaData", {}).get("configuration", {}).get(STATE)
            if number == 0 and kept:
                return str(kept)
        return ""

    def _kept(self, place: TableName, snapshot: Any) -> str:
        """Returns the copy of the state in the table's properties. CdcError `spark.ledger_lost` if a later state was committed
        and its commit is gone."""
        found = snapshot.metadata().configuration().get(STATE)
        note = str(found.get()) if found.isDefined() else ""
        done = snapshot.transactions().get(APPLICATION)
        if done.isDefined() and (not note or parse(note).version != int(done.get())):
            raise CdcError(LEDGER_LOST, "the commit that holds the offsets is gone", where={"table": ".".join(place)})
        return note

    def create(self, place: TableName, columns: str, state: Manifest | None) -> None:
        properties = PROPERTIES if state is None else {**PROPERTIES, STATE: state.text()}
        self._spark.sql(
            f"CREATE TABLE IF NOT EXISTS {self.name(place)} ({columns}) USING delta"
            f" TBLPROPERTIES ({statements.listed(properties)})"
        )

    def adopt(self, place: TableName) -> None:
        self._spark.sql(f"ALTER TABLE {self.name(place)} SET TBLPROPERTIES ({statements.listed(PROPERTIES)})")

    def name(self, place: TableName) -> str:
        return f"delta.{statements.quoted(self._path(place))}"

    def at(self, place: TableName, found: TableVersion) -> str:
        return f"{self.name(place)} VERSION AS OF {found.version}"

    # -- commits ------------------------------------------------------------------------------------------------------

    def commit(self, place: TableName, found: TableVersion, statement: str, state: Manifest) -> Any:
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
            raise refused from exc
        finally:
            for name in noted:
                self._spark.conf.unset(PREFIX + name)
        again = self.load(place)
        if again is None or again.note != state.text():
            where = {"table": ".".join(place)}
            raise CdcError(LEDGER_MOVED, "somebody else has written the table meanwhile", where=where)
        return again.version

    def tend(self, place: TableName) -> None:
        """Copies the state into the table's properties, then removes expired log entries."""
        found = self.load(place)
        if found is None:
            return
        if found.note:
            properties = statements.listed({STATE: found.note})
            self._spark.sql(f"ALTER TABLE {self.name(place)} SET TBLPROPERTIES ({properties})")
        log, snapshot = self._log(place)
        defaults = [getattr(log, f"cleanUpExpiredLogs$default${number}")() for number in (2, 3, 4)]
        log.cleanUpExpiredLogs(snapshot, *defaults)

    def another(self) -> DeltaTables:
        return DeltaTables(self._root, self._roots)
