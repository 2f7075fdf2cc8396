"""What Spark's processes do with rows of a lake."""

from __future__ import annotations

import traceback

import pyarrow as pa
import pytest
from cdcworker.connectors.spark.lakerows import guarded


def test_no_value_is_in_what_ends_the_work():
    def work(batches):
        for batch in batches:
            yield batch
            raise pa.ArrowInvalid("Could not convert '4111-secret'")

    done = guarded(work)(iter([1, 2]))
    assert next(done) == 1
    with pytest.raises(RuntimeError, match=r"^ArrowInvalid$") as caught:
        next(done)
    assert "secret" not in "".join(traceback.format_exception(caught.value))
    assert list(guarded(lambda batches: batches)([1, 2])) == [1, 2]
