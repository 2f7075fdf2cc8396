"""A password that is rotated in one connection, under a running source of PostgreSQL and beside one that does not use it."""

from __future__ import annotations

import secrets

import psycopg
import pytest
from psycopg import sql

from tests import plain_http
from tests.integration import one_worker

pytestmark = [pytest.mark.kafka, pytest.mark.postgres]
PATH = "/v1/connections/shop-db"


@pytest.fixture
def worker(kafka, tmp_path):
    process = one_worker.Worker(tmp_path, kafka.bootstrap, f"g{secrets.token_hex(4)}")
    try:
        process.wait_ready()
        process.wait(lambda: process.get("/v1/cluster")["leader"], "a leader")
        yield process
    finally:
        process.kill()


def put(worker, path, body):
    return plain_http.put(worker.url + path, json=body, timeout=60.0)


def test_a_rotated_password_starts_exactly_the_tasks_that_use_it_again(worker, postgres):
    user, first, second = (f"u{secrets.token_hex(4)}" for _ in range(3))
    name = sql.Identifier(user)
    with psycopg.connect(postgres.dsn(), autocommit=True) as admin:
        admin.execute(
            sql.SQL("CREATE ROLE {} SUPERUSER REPLICATION LOGIN PASSWORD {}").format(name, sql.Literal(first))
        )
        host, port, database = admin.info.host, admin.info.port, admin.info.dbname
        admin.execute("CREATE TABLE IF NOT EXISTS rotated (id int PRIMARY KEY)")
    try:
        login = {
            "connector.class": "postgres",
            "database.hostname": host,
            "database.port": str(port),
            "database.dbname": database,
            "database.user": user,
            "database.password": first,
        }
        assert put(worker, PATH, login).status_code == 201
        config = {
            "connector.class": "postgres",
            "connection": "shop-db",
            "topic.prefix": user,
            "slot.name": user,
            "publication.name": user,
            "table.include.list": "public.rotated",
        }
        worker.put("shop", config)
        worker.put("other", {"connector.class": "datagen", "topic.prefix": f"{user}o", "rows.per.second": "1"})
        epoch = worker.wait_state("shop", "RUNNING")["epoch"]
        worker.wait_state("other", "RUNNING")
        version = plain_http.get(worker.url + "/connectors/shop").headers["etag"]

        refused = put(worker, PATH, {**login, "database.password": "wrong"})
        assert refused.status_code == 400, refused.text
        assert "Connector shop would not run with the connection" in refused.text
        with psycopg.connect(postgres.dsn(), autocommit=True) as admin:
            admin.execute(sql.SQL("ALTER ROLE {} PASSWORD {}").format(name, sql.Literal(second)))
        assert put(worker, PATH, {**login, "database.password": second}).status_code == 200

        worker.wait(lambda: worker.task("shop")["epoch"] > epoch and len(worker.starts("shop-0")) == 2, "a new start")
        worker.wait_state("shop", "RUNNING")
        assert len(worker.starts("other-0")) == 1
        assert plain_http.get(worker.url + "/connectors/shop").headers["etag"] == version
        shown = worker.get("/connectors/shop/tasks-config")
        assert "database.hostname" not in str(shown)
        assert not {first, second} & set(worker.log.read_text().split())
        used = plain_http.delete(worker.url + PATH)
        assert (used.status_code, used.json()["message"]) == (409, "Connection shop-db is used by shop")
        dropped = plain_http.delete(f"{worker.url}/connectors/shop?drop=slot,publication", timeout=60.0)
        assert {item["kind"] for item in dropped.json()["dropped"]} == {"slot", "publication"}
        assert plain_http.delete(worker.url + PATH).status_code == 204
    finally:
        with psycopg.connect(postgres.dsn(), autocommit=True) as admin:
            admin.execute("DROP TABLE IF EXISTS rotated")
            admin.execute(sql.SQL("DROP OWNED BY {}").format(name))
            admin.execute(sql.SQL("DROP ROLE IF EXISTS {}").format(name))
