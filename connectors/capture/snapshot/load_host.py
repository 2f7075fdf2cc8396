"""What requests and signals for rows need of the open task whose loads they change."""

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
    def scheduler(self) -> ChunkScheduler: ...

    @property
    def errors(self) -> CaptureErrors: ...

    @property
    def is_shared(self) -> bool:
        """Returns whether other tasks of the connector capture tables too, of which a request may be meant for some."""

    def captured(self) -> list[TableName]:
        """The tables that are captured now."""

    def new_load(self, identity: str, origin: Origin, tables: Sequence[TableName], /) -> SnapshotLoad:
        """A load that reads all rows of these tables once more."""

    def observe(self) -> None:
        """Shows the snapshot every event of the stream from now on."""
