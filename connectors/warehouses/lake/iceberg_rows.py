"""Commits to Iceberg tables without a job of Spark's: this process writes data files and position deletes as Parquet, and
Iceberg's own library makes the snapshot of them."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.api.table_batch import KEY
from cdcworker.connectors.warehouses.lake import statements
from cdcworker.connectors.warehouses.lake.file_faults import file_errors
from cdcworker.connectors.warehouses.lake.iceberg_files import FilesCache, LiveFile, TableFiles, index_files, read_files
from cdcworker.connectors.warehouses.lake.iceberg_parquet import (
    CODECS,
    IcebergColumn,
    UnfitFile,
    check_file,
    columns_of,
    write_deletes,
    write_rows,
)
from cdcworker.connectors.warehouses.lake.table_places import TablePlaces
from cdcworker.connectors.warehouses.lake.tables import LakeName, RowChange
from cdcworker.connectors.warehouses.storage.files import Storage
from cdcworker.connectors.warehouses.table_files.key_index import by_file
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    import pyarrow as pa
    from cdcworker.connectors.warehouses.table_files.key_index import Numbers

FORMAT: Final = 2
CODEC: Final = "write.parquet.compression-codec"
UNFIT: Final = (
    "write.data.path",
    "write.folder-storage.path",
    "write.object-storage.",
    "write.location-provider.",
    "write.metadata.metrics.",
    "write.parquet.bloom-filter-",
    "encryption.",
)
"""Properties that change where and how files are written: what begins so is left to Iceberg's own writers."""
_PLACES: Final = ("write.object-storage.path", "write.folder-storage.path")


@dataclass(frozen=True, slots=True)
class TableForm:
    """How files of a table are written."""

    columns: tuple[IcebergColumn, ...]
    codec: str
    position: str = ""
    """The name of the column of positions, which the sink alone knows."""

    def holds(self, schema: pa.Schema) -> bool:
        """Returns whether these are the columns of the table, and all of them."""
        mine = {column.name: statements.type_of(column.kind) for column in self.columns}
        return mine == {column.name: statements.type_of(column.type) for column in schema}


@dataclass(slots=True)
class WrittenFiles:
    """The files of a commit that is under way."""

    storage: Storage
    paths: list[str] = field(default_factory=list)
    data: LiveFile | None = None
    deletes: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    """By the number of the data file, its new delete file."""
    gone: dict[int, Numbers] = field(default_factory=dict)
    own_gone: Numbers | None = None
    """Which rows of its own data file are deleted already, by the only delete file of that."""

    def discard(self) -> None:
        # What stays is a file that no snapshot names.
        with contextlib.suppress(OSError, CdcError):
            self.storage.remove(self.paths)


@dataclass(frozen=True, slots=True)
class MergedFiles:
    """Files that one new one replaces, in a snapshot of their own."""

    numbers: Sequence[int]
    rows: pa.Table
    written: WrittenFiles
    snapshot: Any


class IcebergRows:
    """The files of a lake's tables, through one session of Spark's."""

    def __init__(self, jvm: Any, text: Any, cache: FilesCache, places: TablePlaces) -> None:
        """`jvm` is Iceberg's package over there, `text` Java's String."""
        self._cache = cache
        self._places = places
        self._folders: dict[str, float] = {}
        """When the folder of a table was seen."""
        # A name of Java's is looked up over there each time that it is said.
        self._schemas, self._content, self._tasks = jvm.SchemaParser, jvm.ContentFileParser, jvm.ScanTaskParser
        self._manifests, self._text = jvm.ManifestFiles, text
        self._mapper = jvm.util.JsonUtil.mapper()

    @property
    def storage(self) -> Storage:
        return self._places.files

    # -- what a table is ----------------------------------------------------------------------------------------------

    def form(self, table: Any) -> TableForm | None:
        """Returns how the table's files are written; None where that is Iceberg's own business."""
        if table.operations().current().formatVersion() != FORMAT:
            return None
        if table.specs().size() != 1 or table.spec().isPartitioned() or table.sortOrder().isSorted():
            return None
        properties = json.loads(self._mapper.writeValueAsString(table.properties()))
        if any(name.startswith(UNFIT) for name in properties):
            return None
        codec = properties.get(CODEC, CODECS[0]).lower()
        if codec not in CODECS or properties.get("write.format.default", "parquet").lower() != "parquet":
            return None
        if self._places.path(table.location()) is None:
            return None
        columns = columns_of(json.loads(self._schemas.toJson(table.schema())))
        return None if columns is None else TableForm(tuple(columns), codec)

    def files(self, place: LakeName, table: Any, version: Any, form: TableForm) -> TableFiles:
        """Returns the files of the snapshot `version`, which is the table's current one. UnfitFile where they are not ours to
        read."""
        identity = str(table.operations().current().uuid())
        found = self._cache.get(place, identity) or TableFiles(self._places.files, identity, None, self._cache.memory)
        self._cache.drop(place)
        if found.version != version:
            home = self._home(table)
            read_files(self._planned(table, version), found, partial(self._path, home=home))
            found.version = version
        # It may have got another name.
        found.position = form.position
        if form.position:
            own = (KEY, form.position)
            index_files(found, [column for name in own for column in form.columns if column.name == name])
        self._cache.put(place, found)
        return found

    def _home(self, table: Any) -> str:
        """Returns the folder of a table that has a form."""
        found = self._places.path(table.location())
        assert found is not None
        return found

    def _path(self, location: str, home: str) -> str:
        """Returns the path of a file, which has to lie in the folder `home`: what a table's metadata says is no permission to
        read any file."""
        found = self._places.path(location)
        if found is None or not Path(os.path.normpath(found)).is_relative_to(os.path.normpath(home)):
            raise UnfitFile("a file that lies elsewhere")
        return found

    def _planned(self, table: Any, version: Any) -> Iterator[Mapping[str, Any]]:
        if version is None:
            return
        tasks = table.newScan().useSnapshot(version).planFiles()
        try:
            found = tasks.iterator()
            while found.hasNext():
                yield json.loads(self._tasks.toJson(found.next()))
        finally:
            tasks.close()

    def home(self, table: Any) -> str | None:
        """Returns the folder of a table on this machine; None: it lies elsewhere, or its files do, or nobody may delete them."""
        properties = json.loads(self._mapper.writeValueAsString(table.properties()))
        found = self._places.path(table.location()) if self._places.is_here else None
        is_apart = any(name in properties for name in ("write.data.path", "write.metadata.path", *_PLACES))
        is_shared = str(properties.get("gc.enabled", "true")).lower() == "false"
        return None if found is None or is_apart or is_shared else os.path.normpath(found)

    def named(self, table: Any) -> set[str]:
        """Returns the locations of all files that the snapshots of a table name, its metadata apart, as they are written there."""
        found: set[str] = set()
        manifests: dict[str, Any] = {}
        files = table.io()
        for snapshot in table.snapshots():
            found.add(str(snapshot.manifestListLocation()))
            for manifest in snapshot.allManifests(files):
                manifests[str(manifest.path())] = manifest
        for path, manifest in manifests.items():
            found.add(path)
            paths = self._manifests.readPaths(manifest, files, table.specs())
            try:
                found.update(str(self._text.join("\n", paths)).split("\n"))
            finally:
                paths.close()
        for statistics in (*table.statisticsFiles(), *table.partitionStatisticsFiles()):
            found.add(str(statistics.path()))
        return found

    # -- commits ------------------------------------------------------------------------------------------------------

    def write(self, table: Any, form: TableForm, files: TableFiles | None, change: RowChange) -> WrittenFiles:
        """Writes the files of a change; nobody sees them yet."""
        import numpy as np

        written = WrittenFiles(self._places.files)
        try:
            if change.put.num_rows:
                location, path = self._new(table, written)
                entry = {
                    **write_rows(written.storage, path, change.put, form.columns, form.codec),
                    "file-path": location,
                }
                written.data = LiveFile(entry, path, seen=time.monotonic())
            for number, rows in by_file(change.gone).items() if files is not None and change.gone is not None else ():
                assert files is not None
                file = files.files[number]
                self._check(file)
                gone = written.gone[number] = files.mask(number)
                gone[rows] = True
                location, path = self._new(table, written, "-deletes")
                written.deletes[number] = {
                    **write_deletes(written.storage, path, file.name, np.flatnonzero(gone)),
                    "file-path": location,
                }
        except BaseException:
            written.discard()
            raise
        return written

    def _new(self, table: Any, written: WrittenFiles, what: str = "") -> tuple[str, str]:
        location = str(table.locationProvider().newDataLocation(f"{uuid.uuid4().hex}{what}.parquet"))
        home = self._home(table)
        path = self._path(location, home)
        now = time.monotonic()
        if now - self._folders.get(home, float("-inf")) >= written.storage.checks_every_s:
            with file_errors():
                if not written.storage.has_folder(home):
                    raise FileNotFoundError(errno.ENOENT, "the table is away")
            self._folders[home] = now
        with file_errors():
            written.storage.make_folder(os.path.dirname(path))
        written.paths.append(path)
        return location, path

    def _check(self, file: LiveFile) -> None:
        """UnreadableFile where a file is missing or another one, as far as that is not known from a moment ago."""
        now = time.monotonic()
        if now - file.seen >= self._places.files.checks_every_s:
            check_file(self._places.files, file.path, file.bytes)
            file.seen = now

    def snapshot(self, table: Any, files: TableFiles | None, written: WrittenFiles) -> Any:
        """Returns a snapshot with these files; the table does not have it yet."""
        if not written.deletes:
            update = table.newAppend()
            return (
                update if written.data is None else update.appendFile(self._content_file(table, written.data.entry))
            ).apply()
        assert files is not None
        update = table.newRowDelta()
        if written.data is not None:
            update = update.addRows(self._content_file(table, written.data.entry))
        for number, entry in written.deletes.items():
            update = update.addDeletes(self._content_file(table, entry))
            for old in files.files[number].deletes:
                update = update.removeDeletes(self._content_file(table, old))
        return update.apply()

    def merge_files(self, table: Any, form: TableForm, files: TableFiles) -> MergedFiles | None:
        """Returns a snapshot, which the table does not have yet, with a few files instead of many; None: it needs none."""
        numbers = files.mergeable()
        if not numbers:
            return None
        rows = files.live_rows(numbers, form.columns)
        written = self.write(table, form, None, RowChange(rows))
        try:
            return MergedFiles(numbers, rows, written, self.replacing(table, files, numbers, written))
        except BaseException:
            written.discard()
            raise

    def replacing(self, table: Any, files: TableFiles, numbers: Sequence[int], written: WrittenFiles) -> Any:
        """Returns a snapshot, which the table does not have yet, with what was written in the place of these files."""
        update = table.newRewrite().validateFromSnapshot(files.version)
        for number in numbers:
            update = update.deleteFile(self._content_file(table, files.files[number].entry))
            for entry in files.files[number].deletes:
                update = update.deleteFile(self._content_file(table, entry))
        if written.data is not None:
            for entry in (written.data.entry, *written.data.deletes):
                update = update.addFile(self._content_file(table, entry))
        return update.apply()

    def delete_own(self, table: Any, written: WrittenFiles, rows: Numbers) -> None:
        """Writes the delete file of a data file that nobody sees yet: `rows` of it, in rising order, are gone."""
        import numpy as np

        assert written.data is not None
        location, path = self._new(table, written, "-deletes")
        entry = {**write_deletes(written.storage, path, written.data.name, rows), "file-path": location}
        written.data.deletes, written.data.deleted_by = [entry], None
        written.own_gone = np.zeros(written.data.rows, np.bool_)
        written.own_gone[rows] = True

    def merged(self, place: LakeName, files: TableFiles, done: MergedFiles) -> None:
        """Takes over what a merge of files has changed."""
        for number in done.numbers:
            files.remove(number)
        self.committed(place, files, done.snapshot.snapshotId(), done.written, done.rows)

    def append(self, place: LakeName, table: Any, form: TableForm, version: Any, rows: pa.Table) -> Any:
        """Adds rows to a table of the sink's own, whatever others do to it meanwhile, and returns its version after that."""
        written = self.write(table, form, None, RowChange(rows))
        if written.data is None:
            return version
        table.newFastAppend().appendFile(self._content_file(table, written.data.entry)).commit()
        made = table.currentSnapshot()
        known = self._cache.get(place, str(table.operations().current().uuid()))
        if known is not None and known.version == version == made.parentId():
            self.committed(place, known, made.snapshotId(), written, rows)
        return made.snapshotId()

    def _content_file(self, table: Any, entry: Mapping[str, Any]) -> Any:
        return self._content.fromJson(self._mapper.readTree(json.dumps(entry)), table.spec())

    def committed(
        self, place: LakeName, files: TableFiles, version: Any, written: WrittenFiles, rows: pa.Table
    ) -> None:
        """Takes over what a commit has changed."""
        for number, gone in written.gone.items():
            files.gone[number] = gone
            files.files[number].deletes, files.files[number].deleted_by = [written.deletes[number]], None
        if written.data is not None:
            number = files.add(written.data, written.own_gone)
            if files.position:
                files.insert(number, [rows.select([KEY, files.position])])
        files.version = version
        self._cache.put(place, files)

    def forget(self, place: LakeName) -> None:
        self._cache.drop(place)
