"""Parts of a large table that are written elsewhere: what is said of one that could not be."""

from __future__ import annotations

import pickle
import traceback

import psycopg
import pyarrow as pa
import pytest
from cdcworker.connectors.warehouses.postgres import parallel_staging as parallel
from cdcworker.connectors.warehouses.postgres.ledger import PostgresLedger
from cdcworker.schemas.errors import CdcError

REFUSED = psycopg.errors.InvalidTextRepresentation('invalid input syntax for type integer: "4111-secret"')


@pytest.fixture
def failing(monkeypatch):
    """A part whose writing ends with an error."""

    def part(error):
        def opened(conninfo):
            raise error

        monkeypatch.setattr(parallel, "opened", opened)
        monkeypatch.setattr(parallel.copy, "columns_of", lambda *args: {})
        empty = pa.table({})
        sink = pa.BufferOutputStream()
        pa.ipc.new_stream(sink, empty.schema).close()
        return parallel.StagingPart("stage_", None, False, {}, sink.getvalue().to_pybytes())

    return part


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (REFUSED, "InvalidTextRepresentation 22P02"),
        (psycopg.OperationalError("4111-secret"), "OperationalError None"),
        (pa.ArrowInvalid("Could not convert '4111-secret'"), "ArrowInvalid"),
    ],
)
def test_no_value_is_in_what_an_executor_says(failing, error, said):
    with pytest.raises(parallel.PartNotWritten) as caught:
        parallel.write("", failing(error))
    assert str(pickle.loads(pickle.dumps(caught.value))) == said
    assert "secret" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("error", [CdcError("spark.target_version", "too old"), ImportError("no module")])
def test_what_has_no_value_goes_on_as_it_is(failing, error):
    with pytest.raises(type(error)) as caught:
        parallel.write("", failing(error))
    assert caught.value is error


def test_a_stage_table_says_of_whom_it_is():
    ledger = PostgresLedger("sink", 0)
    assert parallel.epoch_of(parallel.own_name(f"{parallel.family(ledger)}1f_2_a_")) == (31, 2)
