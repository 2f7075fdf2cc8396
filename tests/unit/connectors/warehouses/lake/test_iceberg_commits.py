"""What becomes of a commit to a catalog whose answer is lost."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from cdcworker.connectors.sink_errors import LEDGER_MOVED
from cdcworker.connectors.warehouses.lake.iceberg import IcebergTables
from cdcworker.connectors.warehouses.lake.tables import STATE, LakeName, TableVersion
from cdcworker.schemas.errors import CdcError

ORDERS = LakeName("public", "orders")
FOUND, MADE, NOTE = 1, 2, "the state"


class Catalog:
    """One table. It makes a commit, or does not, and answers neither way."""

    def __init__(self, is_made):
        self.is_made, self.version = is_made, FOUND

    def current(self):
        newest = SimpleNamespace(snapshotId=lambda: self.version)
        return SimpleNamespace(properties=lambda: {STATE: NOTE}, currentSnapshot=lambda: newest)

    def commit(self, _base, made):
        if self.is_made:
            self.version = made.snapshotId()
        raise RuntimeError("CommitStateUnknownException")


def published(catalog, monkeypatch):
    """A snapshot that changes no row, so that the state stays."""
    tables = IcebergTables({})
    built = SimpleNamespace(setBranchSnapshot=lambda snapshot, _branch: SimpleNamespace(build=lambda: snapshot))
    tables._metadata = SimpleNamespace(buildFrom=lambda _base: built)
    monkeypatch.setattr(tables, "load", lambda _place: TableVersion(None, {}, catalog.version, False, NOTE))
    table = SimpleNamespace(operations=lambda: catalog)
    snapshot = SimpleNamespace(snapshotId=lambda: MADE)
    tables._publish(ORDERS, table, TableVersion(None, {}, FOUND, False, NOTE), snapshot, NOTE)


def test_files_that_were_merged_count_where_the_table_has_them(monkeypatch):
    published(Catalog(True), monkeypatch)


def test_files_that_were_merged_count_for_nothing_where_the_table_lacks_them(monkeypatch):
    with pytest.raises(CdcError) as refused:
        published(Catalog(False), monkeypatch)
    assert refused.value.code == LEDGER_MOVED
    # So none of its files is deleted: it may come yet.
    assert refused.value.__cause__ is not None
