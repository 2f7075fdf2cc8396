"""What dead letters of a warehouse with transactions must do beside a task that goes on, as tests over a fixture `open_sink(**output)`.

A sink also has `execute`, which returns the rows of a statement, `letters_class`, and `target`, which that class opens.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading

import pytest
from cdcworker.connectors.arrow.assembler import Assembler

from .. import change_streams
from ..change_streams import NARROW
from .dead_letters import LOG
from .warehouses import TOPIC, rows

KILLED = """
import pickle, sys
from cdcworker.connectors.arrow.envelope_schemas import EnvelopeSchemas
from cdcworker.connectors.warehouses.dead_letters import START
letters, target, schemas = pickle.load(sys.stdin.buffer)
letters(target, "sink").redrive(EnvelopeSchemas(schemas, wait_s_max=0), "", START, 60)
"""


class BesideTask:
    def test_a_delete_is_remembered_as_long_as_there_are_letters(self, open_sink):
        sink = open_sink()
        sink.stream.insert(NARROW, (1, 1, "a", "b"))
        sink.stream.delete(NARROW, (1,))
        sink.spoil(0)
        sink.apply()
        for number in (2, 3):
            sink.forget()
            sink.stream.insert(NARROW, (number, 1, "a", "b"))
            sink.apply()
        sink.mend()
        assert (sink.redrive().letters, rows(sink.writer, "id")) == (1, [(2,), (3,)])
        sink.forget()
        sink.stream.insert(NARROW, (4, 1, "a", "b"))
        sink.apply()
        assert sink.execute("select count(*) from _cdcworker.tombstone") == [(0,)]

    def test_a_letter_that_the_target_refuses_stays_alone(self, open_sink):
        sink = open_sink()
        for number in range(5):
            sink.stream.insert(NARROW, (number, number, "a", "b"))
        sink.spoil(1, 2, 3)
        sink.apply()
        sink.mend()
        sink.execute("alter table public.orders add check (n <> 2)")
        done = sink.redrive()
        assert (done.letters, done.rows, done.failed, done.left) == (2, 2, 1, 1)
        assert [code for _, code in sink.left] == ["spark.target_value"]
        assert rows(sink.writer, "id") == [(0,), (1,), (3,), (4,)]

    def test_a_task_that_goes_on_waits_and_then_knows_of_the_deletes(self, open_sink):
        sink = open_sink()
        sink.stream.insert(NARROW, (1, 1, "a", "b"))
        sink.stream.delete(NARROW, (1,))
        sink.stream.insert(NARROW, (2, 1, "a", "b"))
        late = sink.stream.records.pop(0)
        sink.spoil(0, part="key")
        del sink.stream.records[1]
        sink.apply()
        sink.mend()
        assert sink.redrive().letters == 1
        # A row of another partition, older than the delete.
        late = {**late, "partition": 1, "offset": 0}
        batch = Assembler(sink.shapes).build(change_streams.arrow([late]), {}, 2)
        waits = threading.Thread(target=sink.writer.apply, args=(batch,))
        with sink.letters._transaction() as connection:
            sink.letters._ledger.hold(connection, [TOPIC])
            waits.start()
            waits.join(0.3)
            assert waits.is_alive()
        waits.join(30)
        assert rows(sink.writer, "id") == [(2,)]

    @pytest.mark.parametrize("point", ["redrive.before_commit", "redrive.after_commit"])
    def test_a_process_that_dies_leaves_each_letter_or_its_row(self, open_sink, point):
        sink = open_sink()
        for number in range(3):
            sink.stream.insert(LOG, (number,))
        sink.spoil(0, 1)
        sink.apply()
        sink.mend()
        child = subprocess.run(
            [sys.executable, "-c", KILLED],
            input=pickle.dumps((sink.letters_class, sink.target, sink.stream.schemas)),
            env={**os.environ, "CDC_FAILPOINTS": f"{point}=kill"},
            timeout=60,
        )
        assert child.returncode == -signal.SIGKILL
        assert len(sink.left) == (2 if "before" in point else 0)
        sink.redrive()
        assert (rows(sink.writer, "n"), sink.left) == ([(0,), (1,), (2,)], [])
