"""The contract of batch sources, of a streaming query of Spark's."""

from __future__ import annotations

import os
import signal

import pytest
from cdcworker.connectors.api.context import TaskContext
from cdcworker.connectors.api.sink import SinkSpec
from cdcworker.connectors.sink_errors import JVM_DIED
from cdcworker.connectors.spark.query_source import SparkQuerySource
from cdcworker.connectors.spark.settings import SparkSettings
from cdcworker.worker.java import jars
from cdcworker.worker.java.runtime import find_java

from tests.contract import batch_sources as contract
from tests.contract.batch_sources import opened, topics  # noqa: F401 - fixtures
from tests.integration.connectors.spark_archive import cache_of

pytestmark = [
    pytest.mark.spark,
    pytest.mark.kafka,
    # Spark leaves its sockets to the collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]


class SparkWriter:
    """Takes the session of each Java process."""

    def __init__(self):
        self.sessions = []

    def attach(self, session, step):
        self.sessions.append(session)


@pytest.fixture(scope="module")
def stages():
    return contract.Stages()


@pytest.fixture(scope="module")
def source(kafka, stages, tmp_path_factory, shared_spark):
    shared_spark.close()
    files = tuple(str(path) for path in jars.ensure("spark"))
    client = {"bootstrap.servers": kafka.bootstrap}
    home = str(find_java().home)
    java = {"java_home": home, "jars": files, "cache_dir": cache_of(files)}
    spec = SinkSpec("c", 0, "i", (1, 1), (), client, "batches.schemas", {}, "", **java)
    context = TaskContext("c", 0, 1, "i", "")
    folder = tmp_path_factory.mktemp("state")
    made = SparkQuerySource(spec, context, SparkSettings(trigger_ms=50), stages.telemetry, SparkWriter(), folder)
    made.start()
    yield made
    made.close()
    made.close()


@pytest.mark.sampled(3, "queries")
class TestSparkQuery(contract.Contract):
    def test_a_java_process_that_died_is_followed_by_another_one(self, source, topics, opened):  # noqa: F811
        writer = source._writer
        opened(topics.plan())
        contract.next_of(source)
        before = len(writer.sessions)
        os.kill(source._engine.gateway.pid, signal.SIGKILL)
        with pytest.raises(Exception, match=r"."):
            contract.never(source, ("", 0))
        lost = source.lost()
        assert lost is not None
        assert lost.code == JVM_DIED
        source.halt()
        source.end()
        assert len(writer.sessions) == before + 1
        opened(topics.plan())
        assert contract.next_of(source).rows
