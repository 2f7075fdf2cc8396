"""Nothing that a worker tells of rows that a warehouse refuses, or that a sink sets aside, holds a value of theirs."""

from __future__ import annotations

import pytest

from .canaries import Canaries
from .failing_worker import FailingWorker
from .told import everything, leaks, unsaid

pytestmark = [pytest.mark.kafka, pytest.mark.postgres, pytest.mark.spark, pytest.mark.long]
CODES = ("spark.schema_refused", "spark.undecodable", "spark.target_value")


@pytest.fixture
def failing(kafka, postgres, tmp_path):
    world = FailingWorker(tmp_path, kafka, postgres, Canaries())
    try:
        world.worker.wait_ready()
        world.listen()
        world.start_sink()
        world.start_source()
        world.send_dead_records()
        world.answers += world.wait_for_the_sink()
        yield world
    finally:
        world.close()


def test_no_value_of_a_row_that_a_warehouse_refuses_is_told(failing):
    heard = everything(failing, ["out", "shop"])
    assert unsaid(heard, CODES) == []
    assert leaks(failing, heard) == {}
