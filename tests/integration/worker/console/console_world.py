"""Two workers with users of every role, a shop with a source, sinks and a broken connector, as the console shows them."""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psycopg
import yaml
from cdcworker.worker.security.credentials import hashed
from confluent_kafka import Producer

from tests.integration.one_worker import Worker

TOKEN = "S" * 43
USERS = {
    "ada": ["admin"],
    "omar": ["operate"],
    "rita": ["read"],
    "archie": ["operate:archive"],
    "gone": ["admin"],
}
DATABASE_SECRET = "canary-7d2f91"
ROW = "canary-row-4411"
ROWS = 5_000
ALERTS = {
    "receivers": [{"name": "team", "url": "http://127.0.0.1:9/"}],
    "objectives": [{"name": "fresh", "freshness": "60s", "target": "99.9%"}],
    "hold": "1s",
}
"""Nobody listens there: the page shows that, too."""
QUICK = {"task.restart.backoff.ms": "10", "task.restart.backoff.max.ms": "50"}


def token_of(name: str) -> str:
    return f"cdc_{list(USERS).index(name):012x}_{TOKEN}"


def write_users(path: Path, *names: str) -> None:
    found = hashed(TOKEN, log_n=10)
    users = [
        {"name": name, "grants": USERS[name], "tokens": [{"id": token_of(name)[4:16], "hash": found}]} for name in names
    ]
    scratch = path.with_suffix(".new")
    scratch.write_text(yaml.safe_dump({"users": users}))
    scratch.chmod(0o600)
    scratch.replace(path)


class ConsoleWorld:
    """`client` asks the first worker as the admin; `db` is the shop's database."""

    def __init__(self, folder: Path, kafka: Any, postgres: Any | None = None) -> None:
        self.folder, self.kafka, self.postgres = folder, kafka, postgres
        self.users = folder / "users.yaml"
        write_users(self.users, *USERS)
        self.group = f"c{secrets.token_hex(4)}"
        # Not where connectors may read.
        alerts = folder.with_name(f"{folder.name}-alerts.yaml")
        alerts.write_text(yaml.safe_dump(ALERTS))
        alerts.chmod(0o600)
        more = {
            "alerts.file": str(alerts),
            "rest.auth.file": str(self.users),
            "file.connector.paths": str(folder),
            "sink.standby": "0",
        }
        self.workers = [Worker(folder, kafka.bootstrap, self.group, name, **more) for name in ("w1", "w2")]
        self.url = self.workers[0].url
        headers = {"Authorization": f"Bearer {token_of('ada')}"}
        self.client = httpx.Client(base_url=self.url, headers=headers, timeout=60.0, trust_env=False)
        self.database = self.warehouse = ""
        self.db: psycopg.Connection[Any] | None = None

    def start(self) -> None:
        for worker in self.workers:
            worker.wait_ready()
        self.put(
            "archive", {"connector.class": "file", "file": str(self.folder / "lines.txt"), "topic": self.topic("lines")}
        )

    def topic(self, name: str) -> str:
        return f"{self.group}.{name}"

    def start_shop(self) -> None:
        assert self.postgres is not None
        self.database, self.warehouse = self.postgres.create_database(), self.postgres.create_database()
        self.db = psycopg.connect(self.postgres.dsn(self.database), autocommit=True)
        self.db.execute("create table orders (id int primary key, customer text, state text, total numeric(10,2))")
        self.db.execute("alter table orders replica identity full")
        self.db.execute("create table customers (id int primary key, name text)")
        self.db.execute("insert into orders select g, 'somebody', 'new', g from generate_series(1, %s) g", [ROWS])
        self.db.execute("insert into customers values (1, %s)", [ROW])
        self.role = f"r{self.group}"
        self.db.execute(f"create role {self.role} superuser login password '{DATABASE_SECRET}'")
        tables = {"table.include.list": "public.orders,public.customers"}
        source = {**self.login("database", self.database), "connector.class": "postgres", **tables, **QUICK}
        names = {"topic.prefix": self.group, "slot.name": self.group, "publication.name": self.group}
        self.put("shop", {**source, **names})
        wrong = {"topic.prefix": f"{self.group}x", "slot.name": f"{self.group}x", "database.password": "wrong"}
        self.put("broken", {**source, **wrong})
        self.worker.wait(lambda: self.task("shop")["metrics"].get("snapshot_tables_loaded") == 2, "the first load")
        orders = self.topic("public.orders")
        self.put("warehouse", {
            "connector.class": "spark", "warehouse": "postgres", "topics": orders, "errors.tolerance": "all",
            **self.login("warehouse", self.warehouse), **QUICK,
        })  # fmt: skip
        self.worker.wait(lambda: self.task("warehouse")["metrics"].get("rows", 0) >= ROWS, "the warehouse", 180.0)
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap})
        producer.produce(orders, b"no Avro at all", b"no key either")
        assert producer.flush(30.0) == 0
        self.worker.wait(lambda: self.task("warehouse")["metrics"].get("dead_letters"), "the dead letter", 60.0)
        self.worker.wait(lambda: self.task("broken")["state"] == "FAILED", "the broken connector")

    def login(self, prefix: str, database: str) -> dict[str, str]:
        assert self.db is not None
        info = self.db.info
        return {
            f"{prefix}.hostname": info.host, f"{prefix}.port": str(info.port), f"{prefix}.user": f"r{self.group}",
            f"{prefix}.password": DATABASE_SECRET, f"{prefix}.dbname": database,
        }  # fmt: skip

    @contextmanager
    def load(self) -> Iterator[None]:
        """Orders come in, now more and now fewer, for people who look at charts."""
        assert self.postgres is not None
        ended = threading.Event()

        def orders() -> None:
            with psycopg.connect(self.postgres.dsn(self.database), autocommit=True) as db:
                turn = 0
                while not ended.wait(0.25):
                    turn += 1
                    many = round(12 + 10 * math.sin(turn / 25))
                    db.execute("update orders set total = total + 1 where id %% 200 < %s", [many])

        thread = threading.Thread(target=orders)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    @property
    def worker(self) -> Worker:
        return self.workers[0]

    def ask(self, method: str, path: str, body: Any = None) -> httpx.Response:
        """Asked again while there is no leader."""
        deadline = time.monotonic() + 60.0
        while True:
            found = self.client.request(method, path, json=body)
            if found.status_code != 409 or time.monotonic() >= deadline:
                return found

    def put(self, name: str, config: dict[str, str]) -> None:
        found = self.ask("PUT", f"/connectors/{name}/config?validate=false&details=true", config)
        assert found.status_code in (200, 201), found.text

    def task(self, name: str) -> dict[str, Any]:
        tasks = self.client.get("/v1/cluster").json()["tasks"]
        return next(task for task in tasks if (task["connector"], task["task"]) == (name, 0))

    def state(self, name: str) -> str:
        return str(self.client.get(f"/connectors/{name}/status").json()["connector"]["state"])

    def close(self) -> None:
        self.client.close()
        for worker in self.workers:
            worker.kill()
        if self.db is not None:
            self.db.execute(
                "select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = current_database() and not active"
            )
            self.db.close()
