"""The part of an open source task that snapshot requests and signals act on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from cdcworker.connectors.capture.config.table_names import TableName
from cdcworker.connectors.capture.errors import CaptureErrors
from cdcworker.connectors.capture.snapshot.chunk_scheduler import ChunkScheduler
from cdcworker.connectors.capture.snapshot.progress import Origin, SnapshotLoad


class LoadHost(Protocol):
    """The open task whose loads are changed. Called at boundaries of the stream, by its thread."""

    @property
    def scheduler(self) -> ChunkScheduler:
        """What reads the rows of its loads."""

    @property
    def errors(self) -> CaptureErrors:
        """The codes under which the source declares the errors of a snapshot."""

    @property
    def is_shared(self) -> bool:
        """Returns whether other tasks of the connector capture tables too: a request may name tables of those tasks."""

    def captured(self) -> list[TableName]:
        """Returns the tables that this task captures now."""

    def new_load(self, identity: str, origin: Origin, tables: Sequence[TableName], /) -> SnapshotLoad:
        """Returns a new load, which reads all rows of these tables once more."""

    def observe(self) -> None:
        """Shows the snapshot every event of the stream from now on."""
