"""The start of a sink: Java, its archive of classes, Spark's session."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from cdcworker.connectors.class_archive import ClassArchive
from cdcworker.connectors.spark.runtime.class_archive_run import archive_classes
from cdcworker.connectors.spark.runtime.java_gateway import jvm_flags, spark_home
from cdcworker.connectors.spark.runtime.session import JavaRuntime, SparkEngine
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.java import jars
from cdcworker.worker.java.runtime import find_java

pytestmark = [
    pytest.mark.spark,
    # Of pyspark: the collection of a result leaves its socket to the collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]
START_S_MAX = 150


@pytest.fixture
def engines(tmp_path, shared_spark):
    """Makes engines over one cache; all are closed in the end."""
    shared_spark.close()
    made = []

    def make(**settings):
        runtime = JavaRuntime(
            str(find_java().home / "bin" / "java"),
            tuple(str(path) for path in jars.ensure("spark")),
            **{"cache": str(tmp_path / "cache"), **settings},
        )
        state = tmp_path / f"state{len(made)}"
        state.mkdir()
        made.append(SparkEngine(runtime, state, lambda: False))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


def archive_of(tmp_path):
    class_path = [*map(str, sorted((spark_home() / "jars").glob("*.jar"))), *map(str, jars.ensure("spark"))]
    return ClassArchive(tmp_path / "cache", str(find_java().home / "bin" / "java"), class_path, jvm_flags())


def mapped(engine):
    return ".jsa" in "".join(
        line for line in Path(f"/proc/{engine.gateway.pid}/maps").read_text().splitlines() if "classes/" in line
    )


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_first_run_makes_the_archive_and_the_next_one_starts_from_it(engines, tmp_path, until):
    first = engines()
    first.session().range(10).toArrow()
    assert not mapped(first)
    first.archive_classes(0.0)
    until(archive_of(tmp_path).path.exists, 600, 0.5)
    second = engines()
    assert second.session().range(10).count() == 10
    assert mapped(second)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_an_archive_that_is_made_ahead_is_made_in_silence_and_what_a_first_start_takes(engines, tmp_path, capfd):
    made = archive_classes(str(find_java().home), [str(path) for path in jars.ensure("spark")], tmp_path / "cache")
    assert made == archive_of(tmp_path).path
    # A new user reads whatever Java writes.
    assert capfd.readouterr() == ("", "")
    first = engines()
    assert first.session().range(10).count() == 10
    assert mapped(first)


@pytest.mark.sampled(2, "starts")
@pytest.mark.parametrize("content", [pytest.param(b"", marks=pytest.mark.long), b"no archive\n" * 100_000])
def test_an_archive_that_is_none_is_ignored(engines, tmp_path, content):
    archive = archive_of(tmp_path)
    archive.path.parent.mkdir(parents=True)
    archive.path.write_bytes(content)
    engine = engines()
    assert engine.session().range(10).count() == 10
    assert not mapped(engine)


@pytest.mark.sampled(2, "starts")
def test_a_start_that_is_not_wanted_any_more_is_broken_off(engines):
    engine = engines()
    began = time.monotonic()
    engine.close()
    assert time.monotonic() - began < 60
    assert not engine.alive


@pytest.mark.sampled(2, "starts")
def test_a_start_that_is_broken_off_keeps_the_archive(engines, tmp_path):
    archive = archive_of(tmp_path)
    archive.path.parent.mkdir(parents=True)
    archive.path.touch()
    engines().close()
    assert archive.path.exists()


@pytest.mark.sampled(2, "starts")
def test_java_that_cannot_start_is_an_error_with_its_code(engines):
    engine = engines(memory="1m")
    with pytest.raises(CdcError) as raised:
        engine.session()
    assert raised.value.code == "spark.gateway"
    assert not engine.ready
