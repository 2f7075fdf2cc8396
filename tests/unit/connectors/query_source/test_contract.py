"""The source of a query over SQLite: the suite of all databases."""

from __future__ import annotations

import pytest

from tests.contract.query_source.databases import *  # noqa: F403 - what every database has to do
from tests.unit.connectors.query_source.query_file import QueryFile


@pytest.fixture
def outside(tmp_path):
    return QueryFile(tmp_path)
