"""One database per test, and readers over it that are closed with the test."""

from __future__ import annotations

import os
import random
import uuid

import psycopg
import pytest
from cdcworker.worker.quickstart.roles import make_writer

from tests.integration.connectors.postgres.postgres_reader import Reader, become_role
from tests.integration.connectors.postgres.standbys import made_primary, made_standby
from tests.integration.connectors.spark_archive import archive_of_spark_alone
from tests.integration.connectors.spark_world import World


@pytest.fixture
def database(postgres):
    name = postgres.create_database()
    yield name
    postgres.drop_database(name)


@pytest.fixture
def db(postgres, database):
    with psycopg.connect(postgres.dsn(database), autocommit=True) as connection:
        yield connection


@pytest.fixture
def servers_folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("failover")
    made.chmod(0o711)
    return made


@pytest.fixture
def primary(servers_folder):
    """A server of the test's own, which a standby may follow."""
    server = made_primary(servers_folder)
    server.start()
    yield server
    server.remove()


@pytest.fixture
def standby(servers_folder, primary):
    """Of the primary, not started: `standbys.follow` does it."""
    server = made_standby(servers_folder, primary)
    yield server
    server.remove()


@pytest.fixture
def rng(request):
    """Chance as the run's seed has it: a failure comes again with `-p randomly --randomly-seed=`."""
    return random.Random(getattr(request.config.option, "randomly_seed", 1))


@pytest.fixture
def reader(postgres, database):
    """Makes readers; a keyword is a configuration key, with `_` for `.` unless it has dots itself. They log in as a role
    of a source's rights, unless they are said to be the tables' `owner`."""
    made: list[Reader] = []

    def make(*, owner: bool = False, **config: str) -> Reader:
        one = Reader(postgres, database, **config)
        if not owner:
            one.before_first_start = lambda one: become_role(one, postgres.dsn(database))
        made.append(one)
        return one

    yield make
    for one in made:
        if one.task:
            one.task.close()


class SharedSpark:
    """A Spark session with the libraries of all lakes, which tests share. pyspark has one at a time: whoever needs
    another closes it before, and it is made anew for the next test."""

    def __init__(self, root):
        self.root, self.engine, self.made = root, None, 0

    def session(self):
        if self.engine is None or not self.engine.answers():
            self.close()
            before = set(os.environ)
            with archive_of_spark_alone():
                self.engine = self._new()
                self.engine.session()
            # pyspark leaves variables of its own, which the first test would be blamed for.
            for name in os.environ.keys() - before:
                del os.environ[name]
        return self.engine.session()

    def close(self):
        if self.engine is not None:
            self.engine.close()
            self.engine = None

    def _new(self):
        from cdcworker.connectors.spark.runtime.session import JavaRuntime, SparkEngine
        from cdcworker.connectors.warehouses.lake.kind import DELTA, ICEBERG
        from cdcworker.worker.java import jars
        from cdcworker.worker.java.runtime import find_java

        from tests.genuine import parts

        files = tuple(str(path) for section in ("spark", "iceberg", "delta") for path in jars.ensure(section))
        # The driver of a JDBC catalog.
        files += tuple(map(str, parts.at_hand("catalog")))
        self.made += 1
        state = self.root / f"spark{self.made}"
        state.mkdir()
        program = str(find_java().home / "bin" / "java")
        # Batches of a few rows: compiling code for them would take longer than they do.
        more = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
        runtime = JavaRuntime(
            program, files, settings=tuple({**ICEBERG.spark_settings, **DELTA.spark_settings, **more}.items())
        )
        return SparkEngine(runtime, state, lambda: False)


@pytest.fixture(scope="session")
def shared_spark(devstack_dir):
    shared = SharedSpark(devstack_dir)
    yield shared
    shared.close()


@pytest.fixture
def spark(shared_spark):
    return shared_spark.session()


@pytest.fixture(scope="module")
def standalone(tmp_path_factory):
    from tests.integration.connectors.standalone import Standalone

    with Standalone(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.fixture
def world(kafka, postgres, tmp_path, request):
    database = postgres.create_database()
    # All that a test does in the warehouse it does as the sink's own role.
    dsn = make_writer(postgres.dsn(database), f"writer_{database}", "only here", ["public"])
    made = World(kafka, dsn, tmp_path, f"w{uuid.uuid4().hex[:16]}")
    yield made
    made.close()
    postgres.drop_database(database)
