"""Delta tables written as files, without Spark: rows, state and files, with deletion vectors and without."""

from __future__ import annotations

import pytest
from cdcworker.connectors.warehouses.lake.delta_files import local_table
from cdcworker.connectors.warehouses.lake.tables import TableName
from cdcworker.schemas.errors import CdcError
from hypothesis import HealthCheck, example, given, settings

from tests import change_streams
from tests.contract import warehouses as contract
from tests.unit.connectors.arrow import test_reduce as scripts

from .local_lake import opened

ORDERS = TableName("public", "orders")


def without_truncates(script):
    return [step for step in script if step[0] != "truncate"]


@pytest.mark.parametrize("plain", [False, True], ids=["vectors", "plain"])
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(scripts.actions, scripts.cuts)
@example(scripts.THERE_AND_BACK, range(0, 200, 1))
@example(scripts.AGAIN, range(0, 200, 3))
def test_any_split_into_batches_gives_the_same_rows(tmp_path_factory, plain, script, cuts):
    stream, model = change_streams.Stream(), change_streams.Model()
    scripts.play(without_truncates(script), stream, model)
    writer = opened(tmp_path_factory.mktemp("split"), plain=plain)
    contract.run(stream, writer, cuts)
    found = contract.rows(writer, "id", "n", "a", "big")
    assert {(row[0],): list(row) for row in found} == model.rows
