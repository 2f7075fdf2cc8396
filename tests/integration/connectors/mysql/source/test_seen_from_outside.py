"""A source that runs in a whole worker: examined, measured, followed and compared over REST and by the children that answer it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from cdcworker.worker.diagnostics.verify_child import answer

from tests import plain_http
from tests.integration import one_worker

from ...sink_engine.pump_task import Task
from ...spark_world import eventually
from ..logged import LoggedServer
from .submitted import Source
from .test_into_warehouse import warehouse

__all__ = ["warehouse"]
pytestmark = [pytest.mark.kafka, pytest.mark.mysql, pytest.mark.postgres, pytest.mark.sampled(2)]


def asked(worker: one_worker.Worker, path: str) -> Any:
    response = plain_http.request("GET", f"{worker.url}{path}", timeout=60.0)
    assert response.status_code == 200, response.text
    return response


def test_a_source_is_followed_examined_and_compared(
    worker: one_worker.Worker,
    shop: LoggedServer,
    kafka: Any,
    postgres: Any,
    database: str,
    warehouse: dict[str, str],
    tmp_path: Path,
) -> None:
    shop.ask(
        "create table shop.seen (id int primary key, name varchar(20))",
        "insert into shop.seen values (1, 'a'), (2, 'b')",
    )
    source = Source(worker, shop, "seen", heartbeat__interval__ms="500")
    source.wait_for("seen", "r", 2)
    shop.ask("update shop.seen set name = 'c' where id = 2")
    gtid = str(shop.position())
    source.wait_for("seen", "u", 1)
    # The row's way, by the GTID of its transaction.
    path = f"/v1/connectors/seen/explain?of=shop.seen&key=2&lsn={gtid}"
    worker.wait(lambda: gtid in str(source.ask("GET", "/offsets")), "the stored position")
    told = asked(worker, path).json()["stages"]
    assert [stage["stage"] for stage in told if not stage["found"]] == ["sink"]
    stages = {stage["stage"]: stage["text"] for stage in told}
    assert stages["commit"].startswith(f"update at {gtid} (log.")
    assert f"past it: {gtid} (log." in stages["position"]
    changes = asked(worker, "/v1/connectors/seen/changes?table=shop.seen&from=beginning&follow=false&op=update").text
    assert f'"gtid":"{gtid}"' in changes.replace(" ", "")
    # What the doctor says of it.
    found = {item["check"]: item for item in asked(worker, "/v1/connectors/seen/doctor").json()["findings"]}
    assert found["position.found"]["severity"] == "ok"
    assert not [item for item in found.values() if item["severity"] in ("error", "unknown")]
    # How far it is behind.
    worker.wait(
        lambda: 'cdc_source_lag_transactions{connector="seen",task="0"} 0' in asked(worker, "/metrics").text, "the lag"
    )
    # What its warehouse has.
    keys = {"hostname": "host", "port": "port", "user": "user", "password": "password", "dbname": "dbname"}
    config = {
        "connector.class": "spark",
        "topics": f"{source.prefix}.shop.seen",
        "warehouse": "postgres",
        **{f"warehouse.{ours}": str(warehouse[theirs]) for ours, theirs in keys.items()},
    }
    world = SimpleNamespace(kafka=kafka, name="seen", schema_topic=f"{worker.group}.schemas", tmp_path=tmp_path)
    task = Task(world, 1, config)
    try:
        eventually(lambda: task.failed or verdict(source, config, kafka) == ("equal", 2), "what is equal", 60)
        shop.ask("insert into shop.seen values (3, 'd')", "flush binary logs")
        assert verdict(source, config, kafka) == ("equal", 3)
        with psycopg.connect(postgres.dsn(database), autocommit=True) as db:
            db.execute("update shop.seen set name = 'x' where id = 1")
        assert verdict(source, config, kafka) == ("different", 3)
    finally:
        task.close()


def verdict(source: Source, config: dict[str, str], kafka: Any) -> tuple[str, int]:
    """What a comparison says, and how many rows it found in the source."""
    said: list[Any] = []
    question = {
        "providers": {},
        "kafka": {"bootstrap.servers": kafka.bootstrap},
        "sink": {"name": "seen", "config": config, "prefixes": []},
        "source": {"name": "seen", "config": source.config, "tasks": 1},
        "tables": [],
    }
    answer(question, said.append)
    result = said[-1].get("result")
    if result is None or not result["tables"]:
        return str(said[-1]), 0
    assert result["position"].count(":") == 1
    return result["verdict"], result["tables"][0]["rows"]["source"]
