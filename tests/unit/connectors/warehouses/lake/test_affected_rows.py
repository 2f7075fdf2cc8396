"""What Spark's processes do with rows of a lake."""

from __future__ import annotations

import tempfile
import threading
import traceback

import pyarrow as pa
import pytest
from cdcworker.connectors.warehouses.lake.affected_rows import StagedFiles, guarded
from cdcworker.schemas.errors import CdcError


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


class Session:
    """Takes what is staged, and lets a test in between."""

    def __init__(self, meanwhile=lambda: None):
        self.read, self.staged, self.meanwhile = self, [], meanwhile

    def schema(self, _):
        self.meanwhile()
        return self

    def parquet(self, path):
        self.staged.append(path)
        return self

    def createOrReplaceTempView(self, _):
        pass


def test_a_stage_that_was_closed_leaves_no_folder_behind_whoever_still_uses_it(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    rows, used, closed = pa.table({"n": [1]}), threading.Event(), threading.Event()
    first, stage = StagedFiles(), StagedFiles().another()
    for one in (first, stage):
        one.view(Session(), "v", rows)
    assert len(list(tmp_path.iterdir())) == 2
    session = Session(lambda: (used.set(), closed.wait(30)))
    caught = []

    def late():
        try:
            stage.view(session, "v", rows)
        except CdcError as exc:
            caught.append(exc.code)

    thread = threading.Thread(target=late)
    thread.start()
    assert used.wait(30)
    for one in (first, stage):
        one.close()
    closed.set()
    thread.join(30)
    assert (caught, session.staged) == (["spark.query_failed"], [])
    assert list(tmp_path.iterdir()) == []
