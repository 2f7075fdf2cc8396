"""The log of a Delta table, read and written by its files: what it says at its newest version, and a commit behind that."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cdcworker.connectors.warehouses.storage.files import Storage
from cdcworker.connectors.warehouses.table_state import late

Action = Mapping[str, Any]
HOME: Final = "_delta_log"
FileId = tuple[str, str]
"""Path of a data file, and the id of its deletion vector, as the log has them."""


class UnreadableLog(Exception):
    """The log is not such as this reads: Delta itself has to."""


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """A table at one version. `transactions` are the highest versions of applications; `changed` is the last version in
    which rows or one of these changed, as far as is known: columns and properties may have since."""

    version: int
    protocol: Action
    metadata: Action
    files: Mapping[FileId, Action]
    transactions: Mapping[str, int]
    changed: int


def file_id(action: Action) -> FileId:
    vector = action.get("deletionVector")
    return action["path"], "" if not vector else vector_id(vector)


def vector_id(vector: Action) -> str:
    offset = vector.get("offset")
    return f"{vector['storageType']}{vector['pathOrInlineDv']}" + ("" if offset is None else f"@{offset}")


class TableLog:
    """The log among a table's files. What was read of it is kept; a later look reads what came since."""

    def __init__(self, files: Storage) -> None:
        self.files = files
        self._known: TableSnapshot | None = None
        self._identity: Any = None

    @staticmethod
    def path(version: int) -> str:
        return f"{HOME}/{version:020d}.json"

    @property
    def known(self) -> TableSnapshot | None:
        return self._known

    def forget(self) -> None:
        self._known = None

    def snapshot(self) -> TableSnapshot | None:
        """Returns the table as it is now; None: there is none."""
        try:
            known = self._still() or self._loaded()
            while known is not None:
                try:
                    lines = self.files.read(self.path(known.version + 1))
                except FileNotFoundError:
                    break
                known = _after(known, known.version + 1, _actions(lines))
            self._remember(known)
        except (KeyError, TypeError, AttributeError) as exc:
            raise UnreadableLog(type(exc).__name__) from exc
        return known

    def _still(self) -> TableSnapshot | None:
        """What was read, while the file of its version is the same one: another table may have come in its place."""
        if self._known is None or self._identity is None:
            return None
        with contextlib.suppress(FileNotFoundError):
            if self.files.identity(self.path(self._known.version)) == self._identity:
                return self._known
        return None

    def _remember(self, known: TableSnapshot | None) -> None:
        if known is not None and known is self._known:
            return
        self._known = self._identity = None
        if known is not None:
            with contextlib.suppress(FileNotFoundError):
                self._identity = self.files.identity(self.path(known.version))
                self._known = known

    def _loaded(self) -> TableSnapshot | None:
        """The newest checkpoint, or the first commit."""
        names = [name for name in self.files.names(HOME, "") if name[:20].isdigit()]
        points = [name for name in names if ".checkpoint" in name]
        if points:
            newest = max(points)
            version = int(newest[:20])
            if newest != f"{version:020d}.checkpoint.parquet":
                raise UnreadableLog("a checkpoint of another form")
            return _checkpoint(self.files, f"{HOME}/{newest}", version)
        commits = [name for name in names if name.endswith(".json") and len(name) == 25]
        if not commits:
            return None
        if min(commits) != f"{0:020d}.json":
            raise UnreadableLog("the log begins later")
        return _after(None, 0, _actions(self.files.read(self.path(0))))

    def text(self, version: int) -> str | None:
        """Returns the commit of a version as it stands in the log; None: it is not there any more."""
        try:
            return self.files.read(self.path(version)).decode()
        except FileNotFoundError:
            return None

    def versions(self) -> list[int]:
        """Returns the versions whose commits are in the log, in rising order."""
        names = self.files.names(HOME, ".json")
        return sorted(int(name[:20]) for name in names if len(name) == 25 and name[:20].isdigit())

    def commits(self) -> int:
        """Returns how many commits are in the log."""
        return len(self.versions())

    def written(self, version: int) -> float:
        """Returns when a commit was written, in seconds since 1970."""
        return self.files.modified(self.path(version))

    def has_older(self, versions: Sequence[int], seconds: float) -> bool:
        """Returns whether the commit of one of these versions is gone, or older than so many seconds."""
        try:
            return bool(versions) and self.written(min(versions)) < time.time() - seconds
        except FileNotFoundError:
            return True

    def is_late(self, version: int) -> bool:
        """Returns whether a version is a commit of this process that failed without an answer."""
        return self.files.is_late(self.path(version))

    def commit(self, before: TableSnapshot, actions: Sequence[Action]) -> TableSnapshot | None:
        """Adds the next version; None: somebody else has. Files that it names are there and outlive the machine. CdcError where
        what the storage had not answered has arrived meanwhile: an older commit of this process."""
        version = before.version + 1
        content = "\n".join(json.dumps(action, separators=(",", ":")) for action in actions).encode()
        try:
            self.files.create(self.path(version), content)
        except FileExistsError:
            if self.is_late(version):
                raise late({"table": self.files.place("")}) from None
            return None
        made = _after(before, version, actions)
        self._remember(made)
        return made


def _actions(lines: bytes) -> Iterator[Action]:
    for line in lines.splitlines():
        if line:
            yield json.loads(line)


def _after(before: TableSnapshot | None, version: int, actions: Iterable[Action]) -> TableSnapshot:
    """The snapshot after a commit. Whatever order its actions have, removes come first."""
    found = list(actions)
    protocol = before.protocol if before else {}
    metadata = before.metadata if before else {}
    files = dict(before.files) if before else {}
    transactions = dict(before.transactions) if before else {}
    for action in found:
        if "remove" in action:
            files.pop(file_id(action["remove"]), None)
    for action in found:
        if "add" in action:
            files[file_id(action["add"])] = action["add"]
        elif "metaData" in action:
            metadata = action["metaData"]
        elif "protocol" in action:
            protocol = action["protocol"]
        elif "txn" in action:
            transactions[action["txn"]["appId"]] = int(action["txn"]["version"])
    rows = any(name in action for action in found for name in ("add", "remove", "txn"))
    changed = version if rows or before is None else before.changed
    return TableSnapshot(version, protocol, metadata, files, transactions, changed)


def _checkpoint(files: Storage, path: str, version: int) -> TableSnapshot:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(files.source(path))
        if "sidecar" in file.schema_arrow.names:
            raise UnreadableLog("a checkpoint of another form")
        names = [name for name in ("protocol", "metaData", "add", "txn") if name in file.schema_arrow.names]
        rows = file.read(columns=names)
    except (pa.ArrowException, OSError) as exc:
        raise UnreadableLog(type(exc).__name__) from exc
    found: dict[str, Any] = {}
    live, transactions = {}, {}
    for name in names:
        column = rows[name]
        for row in column.filter(column.is_valid()).to_pylist():
            row = _plain(row)
            if name == "add":
                live[file_id(row)] = row
            elif name == "txn":
                transactions[row["appId"]] = int(row["version"])
            else:
                found[name] = row
    return TableSnapshot(version, found["protocol"], found["metaData"], live, transactions, version)


_MAPS = ("partitionValues", "tags", "configuration", "options")


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """A row of a checkpoint as the JSON of a commit would be: maps are maps, and what is null is left out."""
    out = {}
    for name, value in row.items():
        if value is None or name in ("stats_parsed", "partitionValues_parsed"):
            continue
        if name in _MAPS:
            value = dict(value)
        elif isinstance(value, dict):
            value = _plain(value)
        out[name] = value
    return out
