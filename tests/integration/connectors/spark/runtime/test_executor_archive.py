"""Executors whose machines have Python, and nothing of ours but what an archive brings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from cdcworker.connectors.spark.runtime.executor_archive import PYTHON
from cdcworker.worker.cli.main import cli
from click.testing import CliRunner

from tests.change_streams import NARROW
from tests.integration.connectors.spark_world import eventually, load
from tests.integration.connectors.standalone import PARALLEL, Standalone

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.postgres, pytest.mark.long]
BARE = {"PATH": f"{sys.base_prefix}/bin:/usr/bin:/bin", "PYTHONPATH": ""}
ALONE = "stages the table alone"


@pytest.fixture
def bare(tmp_path_factory):
    with Standalone(tmp_path_factory.mktemp("cluster"), **BARE) as made:
        yield made


@pytest.fixture
def archive(tmp_path):
    path = tmp_path / "env.tar.gz"
    done = CliRunner().invoke(cli, ["spark-archive", str(path)])
    assert done.exit_code == 0, done.output
    return path


def staged(world, bare, number, **config):
    """Rows that are there already change: so they are staged. What the driver says, and what Python loads in executors."""
    process = world.start([world.topic(NARROW)], **bare.config(**{**PARALLEL, **config}))
    eventually(lambda: world.rows() == world.model.rows, f"what was there before {number}")
    for id in range(200):
        world.stream.update(NARROW, (id, number, "changed", None), (3,))
        world.model.update((id,), (id, number, "changed", None), (3,))
    world.send()
    eventually(lambda: world.rows() == world.model.rows, f"the changes of {number}")
    loaded = "".join(Path(f"/proc/{pid}/maps").read_text() for pid in bare.pythons())
    world.stop(process)
    assert process.returncode == 0
    return (world.tmp_path / f"err{world.attempt}").read_text(), loaded


def test_executors_stage_with_what_an_archive_brings(world, bare, archive):
    program = f"{sys.base_prefix}/bin/{PYTHON}"
    nothing = subprocess.run([program, "-c", "import cdcworker.connectors"], env=BARE, capture_output=True, check=False)
    assert nothing.returncode == 1
    world.create(world.topic(NARROW))
    load(world, 0, 200)
    world.send()
    said, loaded = staged(world, bare, 1, **{"spark.pyspark.python": program})
    assert ALONE in said
    inside = {"spark.archives": f"{archive}#environment", "spark.pyspark.python": "./environment/bin/python"}
    said, loaded = staged(world, bare, 2, **inside)
    assert ALONE not in said
    assert "/environment/lib/pyarrow/" in loaded
    assert "/environment/lib/psycopg_binary/" in loaded


def test_an_archive_that_is_not_there_ends_the_task_with_its_code(world, bare, tmp_path):
    world.create(world.topic(NARROW))
    missing = {
        "spark.archives": f"{tmp_path}/no.tar.gz#environment",
        "spark.pyspark.python": "./environment/bin/python",
    }
    process = world.start([world.topic(NARROW)], **bare.config(**missing))
    assert process.wait(60) == 1
    assert world.said()[-1]["error"]["code"] == "spark.archive"
