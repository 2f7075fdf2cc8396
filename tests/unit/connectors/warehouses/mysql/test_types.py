"""Which types hold the values of a column that the source changed."""

from __future__ import annotations

import pytest
from cdcworker.connectors.warehouses.mysql import types


@pytest.mark.parametrize(
    ("existing", "wanted", "found"),
    [
        ("char(36)", "varchar(20)", "varchar(36)"),
        ("char(10)", "varchar(20)", "varchar(20)"),
        ("char(36)", types.TEXT, types.TEXT),
        ("char(36)", types.UUID, "char(36)"),
        ("varchar(20)", "varchar(10)", "varchar(20)"),
        ("decimal(10,2)", "int", "decimal(12,2)"),
        ("decimal(65,0)", "decimal(40,30)", types.TEXT),
        ("bigint unsigned", "bigint", None),
        ("date", types.BOOLEAN, None),
    ],
)
def test_a_column_becomes_one_that_holds_both(existing, wanted, found):
    assert types.widened(existing, wanted) == found
