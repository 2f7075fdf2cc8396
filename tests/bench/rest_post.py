"""How long does POST /connectors take, its live checks included? Beside it: validation by definition alone, in the same run.

A fresh cluster of one worker, as `cdcworker start` runs it, with a real Kafka and a real PostgreSQL; requests come one after the
other. Each connector is created, read back and deleted again. Figures are milliseconds; the last line is one JSON object.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import httpx
import psycopg
from cdcworker.worker.devstack.stack import DevStack
from psycopg.conninfo import conninfo_to_dict

from .measure import finish, wait

LIMIT_MS = 300.0
"""What the median of a POST may take, whatever the connector."""
Config = Mapping[str, str]


def configs(folder: Path, stack: DevStack) -> dict[str, Config]:
    """Returns a config of each kind: with nothing to check, with a file, and with a database that is asked, of a source and
    of a sink."""
    (folder / "lines").write_text("a line\n")
    found = stack.endpoints()
    with psycopg.connect(found["postgres"], autocommit=True) as connection:
        connection.execute("CREATE TABLE items (id int PRIMARY KEY, name text)")
    return {
        "datagen": {"connector.class": "datagen", "topic.prefix": "p"},
        "file": {"connector.class": "file", "file": str(folder / "lines"), "topic": "t"},
        "postgres": {"connector.class": "postgres", "topic.prefix": "p", **login(found["postgres"], "database")},
        "spark": {"connector.class": "spark", "topics": "p.public.items", **login(found["warehouse"], "warehouse")},
    }


def login(dsn: str, prefix: str) -> Config:
    """Returns the keys with which a connector reaches the database."""
    place = conninfo_to_dict(dsn)
    names = {"host": "hostname", "port": "port", "user": "user", "password": "password", "dbname": "dbname"}
    return {f"{prefix}.{name}": str(place[part]) for part, name in names.items() if place.get(part)}


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


def measured(client: httpx.Client, kind: str, config: Config, rounds: int) -> dict[str, float]:
    post_times(client, kind, config, 2)
    validate_times(client, kind, config, 2)
    posted = statistics.median(post_times(client, kind, config, rounds))
    checked = statistics.median(validate_times(client, kind, config, rounds))
    print(f"{kind:10} POST p50 {posted:7.1f} ms   validate without live checks p50 {checked:7.1f} ms", flush=True)
    return {f"{kind}_post_p50_ms": round(posted, 1), f"{kind}_validate_p50_ms": round(checked, 1)}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args(arguments).rounds
    figures: dict[str, float | int | str] = {"rounds": rounds, "limit_ms": LIMIT_MS}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made, "files")
        folder.mkdir(mode=0o700)
        with DevStack(Path(made, "stack"), worker_settings={"file.connector.paths": str(folder)}) as stack:
            url = stack.start_worker().url
            stack.await_workers()
            with httpx.Client(base_url=url, timeout=60.0) as client:
                wait("a leader", lambda: bool(client.get("/v1/cluster").json().get("leader")), 60.0)
                for kind, config in configs(folder, stack).items():
                    figures |= measured(client, kind, config, rounds)
    finish(figures)
    return 0 if all(value <= LIMIT_MS for name, value in figures.items() if "_post_" in name) else 1


if __name__ == "__main__":
    sys.exit(main())
