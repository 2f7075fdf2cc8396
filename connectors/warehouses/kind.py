"""What a kind of warehouse offers to a sink: its config keys, its writer, its ledger, its dead letters and its checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from cdcworker.connectors.api.abilities import RoleOption, RoleRequest
from cdcworker.connectors.api.context import CheckFinding
from cdcworker.connectors.api.sink import LedgerAccess, SinkOffsets
from cdcworker.connectors.api.table_writer import TableWriter
from cdcworker.connectors.config.definition import ConfigKey
from cdcworker.connectors.sql_script import ScriptStep
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    from cdcworker.connectors.arrow.envelope_schemas import EnvelopeSchemas
    from cdcworker.connectors.verify.databases import TargetSide
    from cdcworker.connectors.warehouses.dead_letters import Place, Redriven
    from pyspark.sql import SparkSession

ParsedConfig = Mapping[str, Any]
"""A sink's configuration with typed values, as its `ConfigDef` parsed it."""
SessionFactory = Callable[[], "SparkSession"]
"""Returns the Spark session; waits until it has started and raises CdcError when it cannot start."""
SparkHost = Callable[[], AbstractContextManager[SessionFactory]]
"""Starts Spark for a request that comes from no running task. Spark ends with the context."""


@dataclass(frozen=True, slots=True)
class WriterTask:
    """The task for which a writer is opened."""

    sink: str
    """The connector's name, under which the ledger stores offsets."""
    task: int = 0
    file_roots: Sequence[str] = ()
    """Folders that the worker opens to connectors."""
    is_on_cluster: bool = False
    """Whether Spark's executors may run on other machines than the driver."""


class LedgerAdmin(Protocol):
    """Reads and changes the offsets of a sink that is stopped, or reads those of one that runs."""

    def offsets(self) -> SinkOffsets:
        """Returns the next offset of each partition that the ledger knows."""

    def alter(self, changes: SinkOffsets | None) -> None:
        """Sets offsets in one step (None as an offset: forgets the partition; None as changes: forgets all of them) and fences
        off every task with a lower epoch. CdcError of kind `fenced` when a newer task has started; then nothing changes."""

    def trace(self, change: Mapping[str, Any]) -> dict[str, Any]:
        """Returns what the target knows of one change, which is given as `cdcworker tail` prints it: `next_offset` of its
        partition, and where that is known `batch`, `at_ms`, `dead` (an error code), `row` (this, newer, older, absent)."""


class TableMaintenance(Protocol):
    """Keeps the tables of a task small and quick to read, beside its batches, in a thread of its own."""

    @property
    def interval_s(self) -> float:
        """How long after the end of a run the next one begins; 0: only when it is asked for."""

    def maintain(self, stopping: Callable[[], bool], *, at_once: bool = False) -> Mapping[str, Any] | None:
        """Makes one run, until `stopping` at the latest, and returns what it has done; None: it is not the time for one, or no
        table is known yet. `at_once`: at any time of the day."""


class DeadLetterStore(Protocol):
    """The dead letters that one sink has set aside in its target."""

    def listed(self, topic: str, after: Place, limit: int) -> tuple[int, Sequence[Sequence[Any]]]:
        """Returns how many there are (of one topic; empty: of all), and at most `limit` of those behind `after`: topic,
        partition, offset, code, cause, time in ms, bytes of the key, bytes of the value."""

    def redrive(
        self,
        shapes: EnvelopeSchemas,
        topic: str,
        after: Place,
        seconds: float,
        *,
        log: bool = False,
        dry_run: bool = False,
    ) -> Redriven:
        """Decodes dead letters with `shapes` and applies them again, for at most so many seconds; a dry run changes nothing."""


def _no_findings(_config: ParsedConfig) -> Sequence[CheckFinding]:
    return ()


def _no_problems(_config: ParsedConfig) -> Iterable[tuple[str, str]]:
    return ()


def _no_maintenance(_config: ParsedConfig, _writer: TableWriter, _sink: str) -> TableMaintenance | None:
    return None


def _no_names(_config: Mapping[str, Any]) -> Sequence[str]:
    return ()


def _all_paths_allowed(_config: ParsedConfig, _roots: Sequence[str]) -> None:
    return


def probed(probe: Callable[[], None], keys: Mapping[str, str]) -> Sequence[CheckFinding]:
    """Returns what a probe of a server finds wrong, at the config key that causes it: `keys` by error, else the host."""
    try:
        probe()
    except CdcError as exc:
        key = keys.get(exc.code, "warehouse.hostname")
        return [CheckFinding(key, "error", exc.code, exc.message, exc.hint)]
    return []


def location_of_files(config: ParsedConfig) -> str:
    """Returns the names of the place where a sink's files are, for a kind whose file system may be unmounted unnoticed."""
    names = ("warehouse", "warehouse.path", "warehouse.catalog", "warehouse.catalog.uri")
    return " ".join(config[name].rstrip("/") for name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class WarehouseKind:
    """One kind of target, named by the config key `warehouse`. A kind is declared in the module `kind` of its package and listed
    in `sink_engine/warehouse_kinds.py`; its functions import their libraries when they are called, for configs are validated on
    workers that have none of them."""

    name: str
    title: str
    """The name in texts for people."""
    keys: tuple[ConfigKey, ...]
    """Keys that say where the target is. A key that several kinds share is one object, listed by each of them."""
    batch_keys: tuple[ConfigKey, ...] = ()
    """Keys that say how batches are written to this kind."""
    records_max: int | None = None
    """The default of `max.batch.records`; None: that of all sinks."""
    libraries: str = ""
    """The set of locked Java libraries that Spark needs for it; empty: none."""
    spark_settings: Mapping[str, str] = field(default_factory=dict)
    """Settings with which Spark has to be started."""
    redrives_consistent_sets: bool = False
    """Whether single dead letters may be applied again with consistency=source."""
    keeps_versions: bool = False
    """Whether it offers output.mode=scd2."""
    problems: Callable[[ParsedConfig], Iterable[tuple[str, str]]] = _no_problems
    """Returns keys that are missing or contradict each other, each with what is wrong."""
    secret_settings: Callable[[Mapping[str, Any]], Sequence[str]] = _no_names
    """Returns names of Spark settings whose values are secret, from a config that need not be parsed."""
    location: Callable[[ParsedConfig], str] = location_of_files
    """Returns where the ledger lies if that place may vanish without an error, as an unmounted folder does; else empty."""
    check_paths: Callable[[ParsedConfig, Sequence[str]], None] = _all_paths_allowed
    """Raises CdcError when the worker with these file roots does not let a connector write to the target's folders."""
    probe: Callable[[ParsedConfig], Sequence[CheckFinding]] = _no_findings
    """Connects to the target and returns what is wrong; changes nothing there."""
    role_options: tuple[RoleOption, ...] = ()
    """What the script of a role takes besides the role and the database."""
    role_script: Callable[[RoleRequest], list[ScriptStep]] | None = None
    """Returns the statements that give a role the least rights that a sink needs; None: the kind has no roles."""
    open: Callable[[ParsedConfig, WriterTask], TableWriter]
    """Returns the writer of one task; nothing is connected to before it is used."""
    maintenance: Callable[[ParsedConfig, TableWriter, str], TableMaintenance | None] = _no_maintenance
    """Returns what looks after the tables that the writer of a sink's task writes; None: there is nothing to be done."""
    admin: Callable[[ParsedConfig, LedgerAccess, SparkHost], AbstractContextManager[LedgerAdmin]]
    dead_letters: Callable[[ParsedConfig, LedgerAccess, SparkHost], AbstractContextManager[DeadLetterStore]]
    verify_side: Callable[[ParsedConfig, LedgerAccess, SparkHost], AbstractContextManager[TargetSide]]
    """Opens the target for a comparison with the source (`cdcworker verify`)."""

    @property
    def has_maintenance(self) -> bool:
        """Whether its tables are looked after."""
        return self.maintenance is not _no_maintenance
