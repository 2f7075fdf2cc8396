"""Files in the folder of a Delta table that no version which readers need names."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from cdcworker.connectors.warehouses.lake.delta_files.deletion_vectors import file_of
from cdcworker.connectors.warehouses.lake.delta_files.file_table import FileTable
from cdcworker.connectors.warehouses.lake.delta_files.table_features import data_path
from cdcworker.connectors.warehouses.lake.delta_files.table_log import Action, TableLog, TableSnapshot
from cdcworker.connectors.warehouses.lake.maintenance.snapshots import DELTA_AGE_S, seconds_of
from cdcworker.schemas.failpoints import hit

SUFFIXES = (".parquet", ".bin")


@dataclass(frozen=True, slots=True)
class OrphanGoal:
    """Which files stay: those that are not `older_s`, unless a commit has removed them; those of versions that were the newest
    one less than `age_s` ago (None: what the table's properties say); and those of the version `first` and all later ones (None:
    there is no such version)."""

    older_s: float
    age_s: float | None
    first: int | None

    def kept_s(self, snapshot: TableSnapshot) -> float | None:
        """Returns for how long files of versions stay; None: nobody can tell."""
        told = snapshot.metadata.get("configuration", {}).get("delta.deletedFileRetentionDuration")
        if self.age_s is not None:
            return self.age_s
        return DELTA_AGE_S if told is None else seconds_of(str(told))


@dataclass(slots=True)
class RemovedFiles:
    """The files that the commits of a table have removed, as far as its log was read."""

    table: str = ""
    through: int = -1
    """The last version that was read."""
    begin: int = 0
    """The first one."""
    last: dict[str, tuple[int, float]] = field(default_factory=dict)
    """By path the last version that removed a file, and when, in seconds since 1970."""

    def follow(self, table: str, log: TableLog, version: int) -> bool:
        """Reads what came since; returns whether the commits are all there."""
        versions = [number for number in log.versions() if number <= version]
        if not versions or versions != list(range(versions[0], version + 1)):
            return False
        if self.table != table or self.through > version or self.through + 1 < versions[0]:
            self.table, self.through, self.begin, self.last = table, versions[0] - 1, versions[0], {}
        for number in range(self.through + 1, version + 1):
            text = log.text(number)
            if text is None:
                return False
            for removed in _removed(text):
                at = float(removed.get("deletionTimestamp") or 0) / 1000 or log.written(number)
                self.last.update(dict.fromkeys(files_of(removed), (number, at)))
            self.through = number
        return True


def _removed(text: str) -> Iterator[Action]:
    for line in text.splitlines():
        action = json.loads(line) if '"remove"' in line else {}
        if "remove" in action:
            yield action["remove"]


def files_of(action: Action) -> list[str]:
    """Returns the paths of the files that an action names: a data file, and the file of a deletion vector."""
    vector = action.get("deletionVector")
    out = [data_path(action["path"])]
    if vector and vector["storageType"] == "u":
        out.append(file_of(str(vector["pathOrInlineDv"])))
    return out


def remove(table: FileTable, removed: RemovedFiles, goal: OrphanGoal) -> int:
    """Deletes the files and returns how many those were; none where the log does not tell of all versions that count."""
    now = time.time()
    there = [file for suffix in SUFFIXES for file in table.files.files("", suffix)]
    # What was committed after the files were listed counts.
    with table.lock:
        snapshot = table.log.snapshot()
        age_s = None if snapshot is None or table.layout(snapshot) is None else goal.kept_s(snapshot)
    if (
        snapshot is None
        or age_s is None
        or not removed.follow(str(snapshot.metadata["id"]), table.log, snapshot.version)
    ):
        return 0
    begin = removed.begin
    if begin and (table.log.written(begin) > now - age_s or (goal.first is not None and goal.first < begin)):
        return 0
    live = {path for add in snapshot.files.values() for path in files_of(add)}
    gone = []
    for file in there:
        if file.name in live:
            continue
        version, at = removed.last.get(file.name, (-1, 0.0))
        if version < 0:
            # No commit that is there has removed it. One that was removed earlier is old as well.
            wanted = file.modified < now - max(goal.older_s, age_s)
        else:
            wanted = at < now - age_s and (goal.first is None or version <= goal.first)
        gone += [file.name] if wanted else []
    for name in gone:
        hit("maintenance.before_removal")
        table.files.remove([name])
    left = {file.name for file in there} - set(gone)
    # What is not there any more was deleted by somebody; what came since was not listed.
    removed.last = {name: told for name, told in removed.last.items() if name in left or told[1] >= now - age_s}
    return len(gone)
