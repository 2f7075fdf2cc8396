"""Real parts for the tests: an embedded Kafka and PostgreSQL per session, skipped and counted where they cannot be had."""

from __future__ import annotations

import faulthandler
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.devstack.kafka import QUICK_COMPILER_ONLY, EmbeddedKafka
from cdcworker.worker.devstack.postgres import EmbeddedPostgres, find_programs
from cdcworker.worker.devstack.zookeeper import EmbeddedZooKeeper
from cdcworker.worker.devstack.zookeeper import libraries as zookeeper_libraries
from cdcworker.worker.java import jars
from cdcworker.worker.java.runtime import find_java
from hypothesis import HealthCheck, settings

from tests import sampling
from tests.lanes import RUNNING_FOLDER
from tests.process_state import unchanged
from tests.waiting import FIRST_S, Patience

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")  # no unit test goes by the clock

REQUIRE_PARTS = os.environ.get("CDC_REQUIRE_PARTS") == "1"
"""Set where every part must be there: a missing one is then an error, not a skip."""


def unless_built(module: ModuleType | None) -> pytest.MarkDecorator:
    """Leaves out, and counts, what a native extension is needed for; where every part must be there it runs, and fails."""
    reason = "missing part native extension: it was not built"
    return pytest.mark.skipif(module is None and not REQUIRE_PARTS, reason=reason)


NEEDS = {
    "kafka": ("kafka",),
    "postgres": ("postgres",),
    "spark": ("kafka", "postgres", "spark"),
    "iceberg": ("iceberg", "delta"),
    "delta": ("iceberg", "delta"),
    "zookeeper": ("kafka", "zookeeper"),
    "s3": ("versitygw",),
    "gcs": ("fake-gcs-server",),
    "azure": ("azurite",),
    "oidc": ("oidc-provider",),
    "mysql": ("mariadb",),
    "clickhouse": ("clickhouse",),
    "nats": ("nats",),
    "opensearch": ("opensearch",),
    "rabbitmq": ("rabbitmq",),
    "redis": ("redis",),
    "browser": ("chromium",),
}


@cache
def missing(part: str) -> str | None:
    """Why a part cannot be had here, None if it can."""
    try:
        if part == "postgres":
            find_programs()
        elif part == "versitygw":
            from tests.s3_server import find_program

            if find_program() is None:
                return f"{part}: it was not built (make servers)"
        elif part == "fake-gcs-server":
            from tests.object_stores.gcs_server import find_program as find_gcs

            if find_gcs() is None:
                return f"{part}: its package is not here"
        elif part == "azurite":
            from tests.object_stores.azure_server import find_program as find_azurite

            if find_azurite() is None:
                return f"{part}: it was not installed (make servers)"
        elif part == "oidc-provider":
            from tests.identity_provider.server import find_program as find_provider

            if find_provider() is None:
                return f"{part}: it was not installed (make servers)"
        elif part == "mariadb":
            from tests.mariadb_server import find_programs as find_mariadb

            if find_mariadb() is None:
                return f"{part}: its programs are not here (make servers)"
        elif part == "clickhouse":
            from tests.clickhouse.server import find_engine

            if find_engine() is None:
                return f"{part}: its engine is not here (make servers)"
        elif part == "nats":
            from cdcworker.worker.devstack.nats import find_program as find_nats

            if find_nats() is None:
                return f"{part}: it was not built (make servers)"
        elif part == "rabbitmq":
            from cdcworker.worker.devstack.rabbitmq import find_programs as find_rabbitmq

            if find_rabbitmq() is None:
                return f"{part}: its server is not here (make servers)"
        elif part == "redis":
            from tests.queue_servers.redis_server import find_program as find_redis

            if find_redis() is None:
                return f"{part}: its server is not here (make servers)"
        elif part == "chromium":
            from tests.browser import problem

            return problem()
        elif part == "zookeeper":
            find_java()
            zookeeper_libraries()
        else:
            find_java()
            jars.ensure(part)
    except CdcError as error:
        return f"{part}: {error.message.splitlines()[0]}"
    return None


COSTS = {"spark": 20, "zookeeper": 10, "opensearch": 10, "kafka": 5, "postgres": 2, "mysql": 2, "clickhouse": 1}
"""About how many seconds a test takes that needs this."""
CLASSES = (100, 25)
"""Modules of so many seconds, or more, begin before those of fewer."""


def _modules_that_take_longest_first(items: Sequence[pytest.Item]) -> Callable[[pytest.Item], int]:
    """A sort key by class, which keeps the order of chance within one: of two processes none is left alone for long with
    a module that began last."""
    seconds: Counter[str] = Counter()
    for item in items:
        if not item.get_closest_marker("long"):
            cost = max((cost for marker, cost in COSTS.items() if item.get_closest_marker(marker)), default=0)
            seconds[_module_of(item)] += cost
    rank = {module: sum(total < limit for limit in CLASSES) for module, total in seconds.items()}
    return lambda item: rank.get(_module_of(item), len(CLASSES))


def _module_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave long tests out unless they are asked for, and of sampled ones all but the sample."""
    sampling.leave_the_rest_to_the_long_tier(config, items)
    if hasattr(config, "workerinput"):
        items.sort(key=_modules_that_take_longest_first(items))
    if "long" not in (config.getoption("markexpr") or ""):
        chosen = [item for item in items if not item.get_closest_marker("long")]
        left_out = [item for item in items if item.get_closest_marker("long")]
        if left_out:
            config.hook.pytest_deselected(items=left_out)
            items[:] = chosen


STUCK_S = 120.0
_stderr: list[int] = []


def pytest_configure() -> None:
    _stderr.append(os.dup(2))  # before pytest captures it


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item):
    """A time limit interrupts Python only: what stays in a library's call ends the run, with the stacks of all threads."""
    marker = item.get_closest_marker("timeout")
    limit = float(marker.args[0] if marker and marker.args else item.config.getini("timeout") or 0)
    if limit:
        faulthandler.dump_traceback_later(limit + STUCK_S, exit=True, file=_stderr[-1])
    note = Path(folder) / f"{os.getpid()}.test" if (folder := os.environ.get(RUNNING_FOLDER)) else None
    if note:
        note.write_text(f"{time.time()} {item.nodeid}")
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
        if note:
            note.unlink(missing_ok=True)


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker, parts in NEEDS.items():
        if item.get_closest_marker(marker):
            for part in parts:
                reason = missing(part)
                if reason and REQUIRE_PARTS:
                    pytest.fail(reason, pytrace=False)
                elif reason:
                    pytest.skip(f"missing part {reason}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Every seed that is needed to repeat the run, and what was not run because a part is missing."""
    seed = getattr(config.option, "randomly_seed", None)
    terminalreporter.write_line(f"repeat this order with: pytest -p randomly --randomly-seed={seed}")
    reasons: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        reason = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else ""
        if "missing part" in reason:
            reasons[reason.partition("missing part ")[2]] += 1
    for reason, count in sorted(reasons.items()):
        terminalreporter.write_line(f"NOT RUN: {count} tests, missing part {reason}", yellow=True)


@pytest.fixture(autouse=True)
def _leaves_nothing_behind():
    with unchanged():
        yield


@pytest.fixture(scope="session")
def until():
    """`until(condition, timeout_s=60)`: waits for what a test needs, so that no test sleeps for a fixed time."""

    def wait(condition, timeout_s: float = 60.0, poll_s: float = FIRST_S) -> None:
        patience = Patience(timeout_s)
        while not condition():
            assert not patience.is_over(), f"not within {timeout_s:.0f} s"
            patience.pause(poll_s)

    return wait


@pytest.fixture(scope="session")
def devstack_dir(tmp_path_factory: pytest.TempPathFactory):
    """A folder for the data of embedded servers, removed at the end."""
    path: Path = tmp_path_factory.mktemp("devstack")
    path.chmod(0o711)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@contextmanager
def serving(server):
    """Started, and removed with all that it holds."""
    server.start()
    try:
        yield server
    finally:
        server.remove()


@pytest.fixture(scope="session")
def kafka(devstack_dir: Path):
    """The session's broker: `.bootstrap`, `.pid`, `.restart()`, `.kill()`, `.pause()`. Leave it running."""
    with serving(EmbeddedKafka(devstack_dir / "kafka", jvm_options=QUICK_COMPILER_ONLY)) as broker:
        yield broker


@pytest.fixture(scope="session")
def postgres(devstack_dir: Path):
    """The session's server: `.dsn(dbname)`, `.create_database()`, `.drop_database(name)`, `.restart()`."""
    with serving(EmbeddedPostgres(devstack_dir / "postgres")) as server:
        yield server


@pytest.fixture(scope="session")
def zookeeper(devstack_dir: Path):
    """The session's ZooKeeper, one server: `.connect`, `.kill_server(0)`, `.rebuild()`. Leave it running."""
    with serving(EmbeddedZooKeeper(devstack_dir / "zookeeper")) as server:
        yield server


@pytest.fixture(scope="session")
def s3(devstack_dir: Path):
    """The session's server of S3: `.endpoint`, `.files(prefix)`. Tests that use it have the marker `s3`."""
    from tests.s3_server import S3Server, find_program

    program = find_program()
    assert program is not None
    with serving(S3Server(program, devstack_dir / "s3")) as server:
        yield server


@pytest.fixture(scope="session")
def gcs(devstack_dir: Path):
    """The session's server of Google Cloud Storage. Tests that use it have the marker `gcs`."""
    from tests.object_stores.gcs_server import GcsServer, find_program

    program = find_program()
    assert program is not None
    with serving(GcsServer(program, devstack_dir / "gcs")) as server:
        yield server


@pytest.fixture(scope="session")
def azure(devstack_dir: Path):
    """The session's server of Azure's Blob Storage. Tests that use it have the marker `azure`."""
    from tests.object_stores.azure_server import AzureServer, find_program

    program = find_program()
    assert program is not None
    with serving(AzureServer(program, devstack_dir / "azure")) as server:
        yield server


@pytest.fixture(scope="session")
def mysql(devstack_dir: Path):
    """The session's MariaDB: `.login()`, `.ask(*statements)`, `.wipe()`, `.restart()`. Tests that use it have the marker `mysql`."""
    from tests.mariadb_server import MariaDbServer, find_programs

    programs = find_programs()
    assert programs is not None
    with serving(MariaDbServer(programs, devstack_dir / "mariadb")) as server:
        yield server


@pytest.fixture(scope="session")
def clickhouse(devstack_dir: Path):
    """The session's ClickHouse: `.place()`, `.ask(*statements)`, `.rows(query)`, `.wipe()`. Its tests have the marker `clickhouse`."""
    from tests.clickhouse.server import ClickHouseServer, find_engine

    engine = find_engine()
    assert engine is not None
    with serving(ClickHouseServer(engine, devstack_dir / "clickhouse")) as server:
        yield server


@pytest.fixture(scope="session")
def nats(devstack_dir: Path):
    """The session's server of NATS: `.config()`, `.call(work)`, `.kill()`, `.start()`. Tests that use it have the marker `nats`."""
    from cdcworker.worker.devstack.nats import find_program

    from tests.queue_servers.nats_server import NatsServer

    program = find_program()
    assert program is not None
    with serving(NatsServer(program, devstack_dir / "nats")) as server:
        yield server


@pytest.fixture(scope="session")
def opensearch(devstack_dir: Path):
    """The session's server of OpenSearch: `.config()`, `.rows(index)`, `.kill()`, `.start()`. Tests that use it have the marker
    `opensearch`."""
    from tests.queue_servers.search_server import SearchServer

    with serving(SearchServer(devstack_dir / "opensearch")) as server:
        yield server


@pytest.fixture(scope="session")
def rabbitmq(devstack_dir: Path):
    """The session's server of RabbitMQ: `.config()`, `.taken(queue)`, `.alarm()`, `.kill()`, `.start()`. Tests that use it have the
    marker `rabbitmq`."""
    from cdcworker.worker.devstack.rabbitmq import find_programs

    from tests.queue_servers.rabbitmq_server import RabbitMqServer

    programs = find_programs()
    assert programs is not None
    with serving(RabbitMqServer(programs, devstack_dir / "rabbitmq")) as server:
        yield server


@pytest.fixture(scope="session")
def redis(devstack_dir: Path):
    """The session's server of Redis: `.client`, `.config()`, `.kill()`, `.start()`. Tests that use it have the marker `redis`."""
    from tests.queue_servers.redis_server import RedisServer, find_program

    program = find_program()
    assert program is not None
    with serving(RedisServer(program, devstack_dir / "redis")) as server:
        yield server


@pytest.fixture(scope="session")
def ensemble(devstack_dir: Path):
    """Three ZooKeeper servers, as `zookeeper`. Leave all of them running."""
    with serving(EmbeddedZooKeeper(devstack_dir / "ensemble", servers=3)) as servers:
        yield servers
