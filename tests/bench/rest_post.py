"""How long does POST /connectors take, its live checks included? Beside it: validation by definition alone, in the same run.

A worker's REST server with its herder in memory, its own checking children and a real PostgreSQL; requests come one after
the other. Each connector is created, read back and deleted again. Figures are milliseconds; the last line is one JSON object.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import psycopg
from cdcworker.coordinator.kafka.internal_topics import TopicNames
from cdcworker.worker.app import plan
from cdcworker.worker.children.warm import WarmChildren
from cdcworker.worker.devstack.ports import free_ports
from cdcworker.worker.devstack.postgres import EmbeddedPostgres
from cdcworker.worker.herder.config import HerderConfig
from cdcworker.worker.herder.herder import Herder
from cdcworker.worker.server.application import create_app
from cdcworker.worker.server.server import RestServer
from cdcworker.worker.validation.validate import CHILD, run_checks
from psycopg.conninfo import conninfo_to_dict

from tests.herders import StubLauncher

from .measure import finish, wait

LIMIT_MS = 300.0
"""What the median of a POST may take, whatever the connector."""
Config = Mapping[str, str]


@contextmanager
def worker(folder: Path) -> Iterator[str]:
    """Yields the URL of a worker whose live checks run as those of a real one."""
    (port,) = free_ports(1)
    name, group = f"127.0.0.1:{port}", f"bench-{uuid.uuid4().hex[:8]}"
    names = TopicNames.of_group(group)
    config = HerderConfig({}, group, name, f"http://{name}", names, version="1", backend="memory")
    herder, checkers = Herder(config, plan, StubLauncher()), WarmChildren(CHILD)
    checks = functools.partial(run_checks, providers={"file.connector.paths": str(folder)}, call=checkers.call)
    server = RestServer(create_app(herder, checks=checks), "127.0.0.1", port)
    with ExitStack() as stack:
        stack.callback(checkers.close)
        checkers.open()
        herder.start()
        stack.callback(herder.stop)
        server.start()
        stack.callback(server.stop)
        if not herder.wait_started(60):
            sys.exit("the herder did not start")
        wait("a leader", lambda: herder.view().state.leader is not None, 60.0)
        yield config.url


def configs(folder: Path, postgres: EmbeddedPostgres) -> dict[str, Config]:
    """Returns a config of each kind: with nothing to check, with a file, and with a database that is asked."""
    (folder / "lines").write_text("a line\n")
    with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
        connection.execute("CREATE TABLE items (id int PRIMARY KEY, name text)")
    place = conninfo_to_dict(postgres.dsn())
    return {
        "datagen": {"connector.class": "datagen", "topic.prefix": "p"},
        "file": {"connector.class": "file", "file": str(folder / "lines"), "topic": "t"},
        "postgres": {
            "connector.class": "postgres",
            "topic.prefix": "p",
            "database.hostname": str(place["host"]),
            "database.port": str(place["port"]),
            "database.user": str(place["user"]),
            "database.password": str(place.get("password", "")),
            "database.dbname": str(place["dbname"]),
        },
    }


def milliseconds(call: Callable[[], None], rounds: int) -> list[float]:
    """Returns how long each call took."""
    out = []
    for _ in range(rounds):
        begun = time.perf_counter()
        call()
        out.append((time.perf_counter() - begun) * 1000)
    return out


def post_times(client: httpx.Client, kind: str, config: Config, rounds: int) -> list[float]:
    """Returns the milliseconds of each POST; what came out is compared with what went in."""
    made: list[str] = []

    def create() -> None:
        made.append(f"{kind}-{uuid.uuid4().hex[:8]}")
        answer = client.post("/connectors", json={"name": made[-1], "config": config, "initial_state": "STOPPED"})
        if answer.status_code != 201:
            sys.exit(f"{kind}: {answer.status_code} {answer.text}")

    times = []
    for _ in range(rounds):
        times += milliseconds(create, 1)
        stored = client.get(f"/connectors/{made[-1]}/config").json()
        if stored["name"] != made[-1] or set(stored) != {"name", *config}:
            sys.exit(f"{kind}: another config was stored: {sorted(stored)}")
        client.delete(f"/connectors/{made[-1]}").raise_for_status()
    return times


def validate_times(client: httpx.Client, kind: str, config: Config, rounds: int) -> list[float]:
    path = f"/connector-plugins/{kind}/config/validate?validate=false"

    def validate() -> None:
        answer = client.put(path, json={"name": "bench", **config}).json()
        if answer["error_count"]:
            sys.exit(f"{kind}: {answer['error_count']} errors")

    return milliseconds(validate, rounds)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args(arguments).rounds
    figures: dict[str, float | int | str] = {"rounds": rounds, "limit_ms": LIMIT_MS}
    with tempfile.TemporaryDirectory() as made, EmbeddedPostgres(Path(made, "pg")) as postgres:
        folder = Path(made, "files")
        folder.mkdir()
        with worker(folder) as url, httpx.Client(base_url=url, timeout=60.0) as client:
            for kind, config in configs(folder, postgres).items():
                post_times(client, kind, config, 2)
                validate_times(client, kind, config, 2)
                posted = statistics.median(post_times(client, kind, config, rounds))
                checked = statistics.median(validate_times(client, kind, config, rounds))
                print(f"{kind:10} POST p50 {posted:7.1f} ms   validate without live checks p50 {checked:7.1f} ms")
                figures |= {f"{kind}_post_p50_ms": round(posted, 1), f"{kind}_validate_p50_ms": round(checked, 1)}
    finish(figures)
    return 0 if all(value <= LIMIT_MS for name, value in figures.items() if "_post_" in name) else 1


if __name__ == "__main__":
    sys.exit(main())
