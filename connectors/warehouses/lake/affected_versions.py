"""The versions of rows that a batch concerns: an old one is closed by a row that replaces it, in the commit of those that come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cdcworker.connectors.api.table_batch import BASE, KEY, POSITION, VALID_FROM, VALID_TO, VALID_TO_POSITION
from cdcworker.connectors.warehouses import target_columns
from cdcworker.connectors.warehouses.lake import statements
from cdcworker.connectors.warehouses.lake.affected_rows import AffectedRows, AppliedRows
from cdcworker.connectors.warehouses.row_versions import merge
from cdcworker.connectors.warehouses.row_versions.positions import VersionsNeeded
from cdcworker.connectors.warehouses.row_versions.staged_versions import staged_versions
from cdcworker.connectors.warehouses.row_versions.timeline import ALL, empty_ends, ends_of, with_ends

if TYPE_CHECKING:
    import pyarrow as pa


def affected(versions: bool) -> type[AffectedRows]:
    """Returns how a batch changes the rows of a table."""
    return AffectedVersions if versions else AffectedRows


class AffectedVersions(AffectedRows):
    """The same of a table of versions. Its rows are told apart by their keys and positions."""

    _versions: Sequence[merge.StagedVersions] = ()

    def _stage(self) -> None:
        self._versions = [self._conformed_versions(part, shape) for part, shape in self._parts]

    def _conformed_versions(self, part: Any, shape: target_columns.FileColumns) -> merge.StagedVersions:
        made = staged_versions(shape, part, self._output)
        rows = target_columns.conform(made.versions.drop_columns([BASE]), self.schema)
        names = target_columns.renamed(shape.schema, self.schema)
        return replace(
            made,
            versions=rows.append_column(BASE, made.versions[BASE]),
            kept=self._flags(shape, made.kept),
            compared=tuple(names[name] for name in made.compared),
        )

    @property
    def _cuts(self) -> list[tuple[bytes, int]]:
        """Position and time (microseconds) of each TRUNCATE of the batch, in rising order."""
        import pyarrow as pa

        found = [staged.truncates for staged in self._versions if staged.truncates.num_rows]
        pairs = [
            zip(part[POSITION].to_pylist(), part[VALID_FROM].cast(pa.int64()).to_pylist(), strict=True)
            for part in found
        ]
        return sorted(pair for part in pairs for pair in part)

    @property
    def by_key(self) -> bool:
        return not self._cuts and not self._fill

    def read_columns(self) -> set[str]:
        """A version that ends is written again, whole."""
        return set(self.schema.names)

    def keys(self) -> set[bytes]:
        return {ALL}.union(*(staged.keys() for staged in self._versions))

    def needed(self) -> VersionsNeeded | None:
        import pyarrow as pa

        if not self._versions:
            return None
        parts = [staged.needed() for staged in self._versions]
        return VersionsNeeded(
            pa.concat_arrays([part.keys for part in parts]), pa.concat_arrays([part.since for part in parts])
        )

    def merge(self, rows: pa.Table, tombstones: pa.Table, places: Any = None) -> AppliedRows:
        before, fresh, orphans, written = rows, empty_ends(), 0, 0
        for staged in self._versions:
            found = merge.merge(rows, with_ends(tombstones, fresh), staged)
            rows, fresh = found.rows, with_ends(fresh, found.remember)
            orphans, written = orphans + found.orphans, written + found.written
        return AppliedRows(before, rows, fresh, orphans, written, places)

    @property
    def _told_apart(self) -> tuple[str, ...]:
        return KEY, self._position

    @property
    def _written_columns(self) -> tuple[str, ...]:
        return VALID_TO_POSITION, VALID_TO

    def _identities(self, rows: pa.Table) -> pa.Array:
        return merge.identities(rows, self._position)

    def _of_others(self) -> list[str]:
        return statements.of_other_versions(self._fill, self._position, self._cuts)


def truncate_ends(parts: Any) -> pa.Table:
    """Returns each TRUNCATE of a batch as an end of the versions of all keys."""
    found = [ends_of(part.truncates, ALL) for part in parts if part.truncates is not None]
    return with_ends(empty_ends(), *found)
