"""Iceberg tables (format 2) through Spark. Rows are merged into a snapshot that nobody sees, which becomes the table's in one
step with the sink's state: a table that is not any more as it was found refuses that step."""

from __future__ import annotations

import contextlib
import itertools
import json
import uuid
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from cdcworker.connectors.spark import lakesql
from cdcworker.connectors.spark.errors import LEDGER_MOVED
from cdcworker.connectors.spark.lakeside import OWN
from cdcworker.connectors.spark.laketables import STATE, Found, Place
from cdcworker.connectors.spark.manifests import Manifest, parse
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.failpoints import hit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CATALOG = "cdc_lake"
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
STAGED = {"write.wap.enabled": "true"}


class IcebergTables:
    """`settings` are the catalog's properties, as Spark takes them behind `spark.sql.catalog.<name>.`."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = dict(settings)
        self._session: SparkSession | None = None
        self._catalog: Any = None

    def open(self, session: SparkSession) -> None:
        """Set while it runs: settings of a start are process arguments, and these may hold a secret."""
        prefix = f"spark.sql.catalog.{CATALOG}"
        session.conf.set(prefix, "org.apache.iceberg.spark.SparkCatalog")
        # What somebody else commits has to be seen.
        for name, value in {**self._settings, "cache-enabled": "false"}.items():
            session.conf.set(f"{prefix}.{name}", value)
        self._session = session
        # The catalog is made by the first statement that names it, with the settings of that statement's session.
        session.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.{OWN}")
        self._catalog = self._jvm.spark.Spark3Util.loadIcebergCatalog(session._jsparkSession, CATALOG)

    @property
    def _spark(self) -> SparkSession:
        assert self._session is not None
        return self._session

    @property
    def _jvm(self) -> Any:
        return self._spark._jvm.org.apache.iceberg

    def _id(self, place: Place) -> Any:
        return self._jvm.catalog.TableIdentifier.parse(f"{place.schema}.{place.table}")

    # -- tables -------------------------------------------------------------------------------------------------------

    def places(self) -> Iterator[Place]:
        for space in self._catalog.listNamespaces():
            for found in self._catalog.listTables(space):
                yield Place(space.toString(), found.name())

    def load(self, place: Place) -> Found | None:
        if not self._catalog.tableExists(self._id(place)):
            return None
        table = self._catalog.loadTable(self._id(place))
        fields = json.loads(self._jvm.spark.SparkSchemaUtil.convert(table.schema()).json())
        snapshot, note = table.currentSnapshot(), table.properties().get(STATE) or ""
        empty = snapshot is None or snapshot.summary().get("total-records") == "0"
        version = None if snapshot is None else snapshot.snapshotId()
        return Found(parse(note) if note else None, lakesql.types_of(fields), version, empty, note)

    def create(self, place: Place, columns: str, state: Manifest | None) -> None:
        properties = PROPERTIES if state is None else {**PROPERTIES, **STAGED, STATE: state.text()}
        self._spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.{lakesql.quoted(place.schema)}")
        self._spark.sql(
            f"CREATE TABLE IF NOT EXISTS {self.name(place)} ({columns}) USING iceberg TBLPROPERTIES ({lakesql.listed(properties)})"
        )

    def adopt(self, place: Place) -> None:
        self._spark.sql(f"ALTER TABLE {self.name(place)} SET TBLPROPERTIES ({lakesql.listed(STAGED)})")

    def name(self, place: Place) -> str:
        return f"{CATALOG}.{lakesql.quoted(place.schema)}.{lakesql.quoted(place.table)}"

    def at(self, place: Place, found: Found) -> str:
        return self.name(place) + ("" if found.version is None else f" VERSION AS OF {found.version}")

    # -- commits ------------------------------------------------------------------------------------------------------

    def commit(self, place: Place, found: Found, statement: str, state: Manifest) -> Any:
        mark = uuid.uuid4().hex
        if statement:
            self._spark.conf.set(WAP, mark)
            try:
                self._spark.sql(statement)
            finally:
                self._spark.conf.unset(WAP)
        table = self._catalog.loadTable(self._id(place))
        staged = _staged(table, mark)
        if staged is None:
            # A snapshot of no rows: a catalog that compares snapshots, and nothing else, then tells two states apart.
            table.newAppend().set("wap.id", mark).stageOnly().commit()
            table = self._catalog.loadTable(self._id(place))
            staged = _staged(table, mark)
        hit("sink.before_commit")
        if staged is None or staged.parentId() != found.version:
            raise _moved(place)
        self._publish(place, table, found, staged.snapshotId(), state.text())
        return staged.snapshotId()

    def _publish(self, place: Place, table: Any, found: Found, snapshot: int, note: str) -> None:
        """The catalog exchanges what is there for what we make of it, or refuses."""
        operations = table.operations()
        base = operations.current()
        now = base.currentSnapshot()
        if (base.properties().get(STATE) or "") != found.note:
            raise _moved(place)
        if (None if now is None else now.snapshotId()) != found.version:
            raise _moved(place)
        properties = self._spark._jvm.java.util.HashMap()
        properties.put(STATE, note)
        made = self._jvm.TableMetadata.buildFrom(base).setBranchSnapshot(snapshot, MAIN).setProperties(properties)
        try:
            operations.commit(base, made.build())
        except Exception as exc:
            if "CommitFailedException" in str(exc):
                raise _moved(place) from exc
            if "CommitStateUnknownException" not in str(exc):
                raise
            again = self.load(place)
            if again is None or again.note != note:
                raise _moved(place) from exc

    def tend(self, place: Place) -> None:
        """As old as the table's properties let them become."""
        with contextlib.suppress(CdcError):
            self._catalog.loadTable(self._id(place)).expireSnapshots().commit()

    def another(self) -> IcebergTables:
        return IcebergTables(self._settings)


def _staged(table: Any, mark: str) -> Any:
    """The snapshot that carries the mark; it is among the last ones."""
    for snapshot in itertools.islice(reversed(table.operations().current().snapshots()), RECENT):
        if snapshot.summary().get("wap.id") == mark:
            return snapshot
    return None


def _moved(place: Place) -> CdcError:
    where = {"table": ".".join(place)}
    return CdcError(LEDGER_MOVED, "somebody else has written the table meanwhile", where=where)
