"""When the tables of a lake are maintained, and how much is done: the keys `maintenance.*` of a sink, and what they say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cdcworker.connectors.config.definition import ConfigKey, between
from cdcworker.connectors.config.refusals import Refusal

GROUP: Final = "Maintenance"
DAY_MS: Final = 86_400_000
INTERVAL_MS_MIN: Final = 10_000
AGE_MS_MIN: Final = 60_000
"""A reader that has begun with a snapshot opens its files within this time at least."""
ORPHAN_AGE_MS_MIN: Final = 3_600_000
"""A file that no snapshot names may be of a commit that is under way."""
MINUTES_A_DAY: Final = 24 * 60


@dataclass(frozen=True, slots=True)
class MaintenanceWindow:
    """Minutes of a day in UTC from `first` up to but without `end`, over midnight where that is smaller."""

    first: int = 0
    end: int = 0

    def holds(self, minute: int) -> bool:
        if self.first < self.end:
            return self.first <= minute < self.end
        return self.first == self.end or minute >= self.first or minute < self.end


def window_of(text: str) -> MaintenanceWindow | None:
    """Returns the window that a text such as 22:00-04:00 names, and all day where it is empty; None: it names none."""
    if not text:
        return MaintenanceWindow()
    begin, dash, end = text.partition("-")
    first, last = _minute(begin), _minute(end)
    if not dash or first is None or last is None or first == last:
        return None
    return MaintenanceWindow(first, last)


def _minute(text: str) -> int | None:
    hours, _, minutes = text.partition(":")
    if len(text) != 5 or not (hours + minutes).isascii() or not (hours + minutes).isdigit() or len(hours) != 2:
        return None
    return int(hours) * 60 + int(minutes) if int(hours) < 24 and int(minutes) < 60 else None


@dataclass(frozen=True, slots=True)
class MaintenancePolicy:
    """What is done in a run. Of what is None the table's own properties tell."""

    interval_s: float = 600.0
    """From the end of a run to the beginning of the next one; 0: there is none."""
    window: MaintenanceWindow = MaintenanceWindow()
    compacts: bool = True
    file_bytes: int = 128 << 20
    """About so large files become at most."""
    run_bytes_max: int = 512 << 20
    run_files_max: int = 1000
    expires: bool = True
    age_s: float | None = None
    """Readers of a snapshot that was the newest one so long ago still find its files."""
    kept_min: int | None = None
    """So many of the newest snapshots are kept whatever their age."""
    removes_orphans: bool = False
    orphan_age_s: float = 3 * DAY_MS / 1000


def _interval_problem(value: int) -> str | None:
    if 0 < value < INTERVAL_MS_MIN:
        return Refusal(f"Value must be 0 or at least {INTERVAL_MS_MIN}")
    return between(0, 31 * DAY_MS)(value)


def _age_problem(value: int) -> str | None:
    if -1 < value < AGE_MS_MIN:
        return Refusal(f"Value must be -1 or at least {AGE_MS_MIN}")
    return between(-1, 3650 * DAY_MS)(value)


def _window_problem(value: str) -> str | None:
    return (
        None
        if window_of(value) is not None
        else Refusal("Value must be two times of a day in UTC, such as 22:00-04:00")
    )


KEYS: Final = (
    ConfigKey(
        "maintenance.interval.ms",
        "LONG",
        600_000,
        validator=_interval_problem,
        group=GROUP,
        doc="How long after its last run the tables of a lake (Iceberg, Delta) are maintained again: 10,000 or more; 0: never.",
        connects=False,
    ),
    ConfigKey(
        "maintenance.window",
        default="",
        validator=_window_problem,
        group=GROUP,
        doc="Runs begin, and go on to a next table, only between these times of a day in UTC, such as 22:00-04:00. Empty: at any"
        " time.",
        connects=False,
    ),
    ConfigKey(
        "maintenance.compaction.enable",
        "BOOLEAN",
        True,
        group=GROUP,
        doc="Makes one file of small ones and writes files without their deleted rows.",
        connects=False,
    ),
    ConfigKey(
        "maintenance.compaction.file.bytes",
        "LONG",
        128 << 20,
        validator=between(1 << 20, 4 << 30),
        group=GROUP,
        doc="About how large files become. What is written at once has to fit into memory, so they may be smaller.",
        connects=False,
    ),
    ConfigKey(
        "maintenance.compaction.run.bytes",
        "LONG",
        512 << 20,
        validator=between(1 << 20, 1 << 50),
        importance="LOW",
        group=GROUP,
        doc="Bytes of files that a run reads to write them again, at most; the next run goes on.",
        connects=False,
    ),
    ConfigKey(
        "maintenance.compaction.run.files",
        "INT",
        1000,
        validator=between(2, 1_000_000),
        importance="LOW",
        group=GROUP,
        doc="The same as a number of files.",
        connects=False,
    ),
    ConfigKey(
        "maintenance.expiry.enable",
        "BOOLEAN",
        True,
        group=GROUP,
        doc="Expires old snapshots of Iceberg tables with their files, and old entries of the log of Delta tables. What a"
        " consistent set names is kept.",
        connects=False,
    ),
    ConfigKey(
        "maintenance.expiry.age.ms",
        "LONG",
        -1,
        validator=_age_problem,
        group=GROUP,
        doc="A snapshot that was the newest one so long ago can still be read: 60,000 or more. -1: what the table's properties say"
        " (history.expire.max-snapshot-age-ms; delta.deletedFileRetentionDuration).",
        connects=False,
    ),
    ConfigKey(
        "maintenance.expiry.keep",
        "INT",
        -1,
        validator=between(-1, 1_000_000),
        importance="LOW",
        group=GROUP,
        doc="So many of the newest snapshots of an Iceberg table are kept whatever their age. -1: what the table's properties say"
        " (history.expire.min-snapshots-to-keep).",
        connects=False,
    ),
    ConfigKey(
        "maintenance.orphans.enable",
        "BOOLEAN",
        False,
        group=GROUP,
        doc="Deletes data files in the folder of a table that no snapshot which is kept names. What others have put there,"
        " another table's files too, counts as such.",
        connects=False,
    ),
    ConfigKey(
        "maintenance.orphans.age.ms",
        "LONG",
        3 * DAY_MS,
        validator=between(ORPHAN_AGE_MS_MIN, 3650 * DAY_MS),
        group=GROUP,
        doc="Files that are younger are never orphans. It has to be longer than any writer of these tables takes for a commit.",
        connects=False,
    ),
)


def policy_of(config: Mapping[str, Any]) -> MaintenancePolicy:
    """Returns the policy that a parsed config describes."""
    age, kept = config["maintenance.expiry.age.ms"], config["maintenance.expiry.keep"]
    return MaintenancePolicy(
        interval_s=config["maintenance.interval.ms"] / 1000,
        window=window_of(config["maintenance.window"]) or MaintenanceWindow(),
        compacts=config["maintenance.compaction.enable"],
        file_bytes=config["maintenance.compaction.file.bytes"],
        run_bytes_max=config["maintenance.compaction.run.bytes"],
        run_files_max=config["maintenance.compaction.run.files"],
        expires=config["maintenance.expiry.enable"],
        age_s=None if age < 0 else age / 1000,
        kept_min=None if kept < 0 else kept,
        removes_orphans=config["maintenance.orphans.enable"],
        orphan_age_s=config["maintenance.orphans.age.ms"] / 1000,
    )


def problems(config: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Returns keys that contradict each other, each with what is wrong."""
    if config["maintenance.compaction.file.bytes"] > config["maintenance.compaction.run.bytes"]:
        yield (
            "maintenance.compaction.run.bytes",
            "is less than maintenance.compaction.file.bytes: no such file could be made",
        )
