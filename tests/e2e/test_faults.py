"""Kill and pause every part in turn under load; after each fault source and warehouse are equal, row by row."""

from __future__ import annotations

import contextlib
import json
import random
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from cdcworker.worker.rest.resources.monitoring.metric_table import SINK, SOURCE
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from tests import plain_http

from .cluster import Cluster, Worker, descendants, paused, send, wait
from .load import COLUMNS, IDS, REST_S, SCHEMA, TABLES, Load, differences

pytestmark = [pytest.mark.kafka, pytest.mark.postgres, pytest.mark.spark, pytest.mark.timeout(600)]

CATCH_UP_S = 90.0
COMMAND = str(Path(sys.executable).parent / "cdcworker")
NO_STANDBY = {"sink_standby": "0"}
"""No process with a Spark session waits beside those that work: each would be started anew after each fault."""


@pytest.fixture(scope="module")
def cluster(kafka, postgres, tmp_path_factory) -> Iterator[Cluster]:
    """Two workers, a source and a sink over three tables."""
    found = Cluster(kafka, postgres, tmp_path_factory.mktemp("cluster"))
    with psycopg.connect(postgres.dsn(found.source_db)) as connection:
        connection.execute(SCHEMA)
    try:
        found.start_worker(**NO_STANDBY)
        found.start_worker(**NO_STANDBY)
        found.submit(
            "shop",
            {
                "connector.class": "postgres",
                **found.connection("database", found.source_db),
                "topic.prefix": found.group,
                "slot.name": found.group.replace("-", "_"),
                "publication.name": found.group.replace("-", "_"),
                "table.include.list": ",".join(f"public.{table}" for table in TABLES),
            },
        )
        found.submit(
            "warehouse",
            {
                "connector.class": "spark",
                "topics": ",".join(f"{found.group}.public.{table}" for table in TABLES),
                "warehouse": "postgres",
                **found.connection("warehouse", found.warehouse_db),
            },
        )
        found.owner("shop")
        found.owner("warehouse")
        yield found
    finally:
        found.stop()


@pytest.fixture
def load(cluster: Cluster, request) -> Iterator[Load]:
    """Load before, during and after the fault; then both sides have to become equal and stay so."""
    seed = request.config.getoption("randomly_seed", None) or 1
    running = Load(cluster.postgres.dsn(cluster.source_db), seed, getattr(request, "param", REST_S))
    running.start()
    try:
        running.more(10)
        yield running
        running.more(50)
    finally:
        running.finish()
    assert_equal(cluster)


def assert_equal(cluster: Cluster) -> None:
    source, warehouse = cluster.postgres.dsn(cluster.source_db), cluster.postgres.dsn(cluster.warehouse_db)
    wait("the warehouse equals the source", lambda: not differences(source, warehouse), CATCH_UP_S, 0.5)
    assert_nothing_twice(cluster)


def assert_nothing_twice(cluster: Cluster) -> None:
    """Positions are unique in each topic, as Confluent's own deserializer reads it, committed records only."""
    settings = {"bootstrap.servers": cluster.kafka.bootstrap, "group.id": "check", "isolation.level": "read_committed"}
    with SchemaRegistryClient({"url": next(iter(cluster.workers.values())).url}) as registry:
        for table in COLUMNS:
            assert_unique(registry, settings, f"{cluster.group}.public.{table}")


def assert_unique(registry: SchemaRegistryClient, settings: dict[str, Any], topic: str) -> None:
    decode, context = AvroDeserializer(registry), SerializationContext(topic, MessageField.VALUE)
    consumer = Consumer({**settings, "enable.partition.eof": True})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        positions: Counter[tuple[int, int, int]] = Counter()
        for message in iter(partial(consumer.poll, 30), None):
            if message.error() is not None:
                break
            if message.value() is not None:
                source = decode(message.value(), context)["source"]
                positions[source["commit_lsn"], source["tx_index"], source["tx_sub"]] += 1
    finally:
        consumer.close()
    assert positions
    assert [place for place, count in positions.items() if count > 1] == []


@pytest.mark.long
def test_rows_arrive(cluster: Cluster, load: Load) -> None:
    load.more(100)


@pytest.mark.parametrize("connector", ["shop", "warehouse"])
def test_a_killed_task_is_started_again_and_loses_nothing(cluster: Cluster, load: Load, connector: str) -> None:
    victim = cluster.task_pid(connector)
    send([victim], signal.SIGKILL)
    wait(f"{connector} runs in a new process", lambda: cluster.task_pid(connector) != victim, 60)


def test_a_killed_leader_is_replaced_and_its_tasks_move(cluster: Cluster, load: Load) -> None:
    kill_and_replace(cluster, cluster.leader())


def test_a_killed_follower_is_replaced_and_its_tasks_move(cluster: Cluster, load: Load) -> None:
    leader = cluster.leader()
    kill_and_replace(cluster, next(w for w in cluster.workers.values() if w.id != leader.id))


def kill_and_replace(cluster: Cluster, victim: Worker) -> None:
    orphans = descendants(victim.pid)
    send([victim.pid], signal.SIGKILL)
    wait("the victim is gone", lambda: not victim.process.alive())
    wait("its tasks die with it", lambda: not [pid for pid in orphans if Path(f"/proc/{pid}/exe").exists()])
    del cluster.workers[victim.id]
    assert cluster.leader().id != victim.id
    assert cluster.owner("shop").id != victim.id
    assert cluster.owner("warehouse").id != victim.id
    cluster.start_worker(**NO_STANDBY)


PAUSED = [*(pytest.param(what, marks=pytest.mark.long) for what in ("tree", "worker")), "task"]


@pytest.mark.parametrize("what", PAUSED)
def test_a_paused_owner_is_replaced_and_does_no_harm_when_it_wakes(cluster: Cluster, load: Load, what: str) -> None:
    owner, task = cluster.owner("shop"), cluster.task_pid("shop")
    pids = {"worker": [owner.pid], "task": [task], "tree": owner.tree()}[what]
    with paused(pids):
        if what == "task":
            load.more(120)
        else:
            wait("another worker takes over", lambda: cluster.owner("shop").id != owner.id, CATCH_UP_S)
    wait("the woken worker is back", lambda: cluster.healthy(owner), 60)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_thirty_random_faults_in_a_row_lose_nothing(cluster: Cluster, load: Load, request) -> None:
    """Kills and pauses of workers and tasks, chosen by the seed; the next fault does not wait for calm."""
    rnd = random.Random(request.config.getoption("randomly_seed", None) or 1)
    for _ in range(30):
        connector = rnd.choice(["shop", "warehouse"])
        fault = rnd.choice(["kill task", "pause task", "kill worker", "pause worker", "pause tree"])
        if fault == "kill worker":
            kill_and_replace(cluster, cluster.owner(connector))
            continue
        owner, task = cluster.owner(connector), cluster.task_pid(connector)
        if fault == "kill task":
            send([task], signal.SIGKILL)
            continue
        with paused({"pause task": [task], "pause worker": [owner.pid], "pause tree": owner.tree()}[fault]):
            load.more(rnd.randrange(50, 800))
        wait("the woken worker is back", partial(cluster.healthy, owner), 60)


def test_a_third_worker_takes_part_of_the_work_and_the_rest_is_not_restarted(cluster: Cluster, load: Load) -> None:
    for i in range(4):
        cluster.submit(f"extra-{i}", generator(cluster, i))
    names = ["shop", "warehouse", *(f"extra-{i}" for i in range(4))]
    try:
        before = {name: (cluster.owner(name).id, cluster.task_pid(name)) for name in names}
        third = cluster.start_worker(**NO_STANDBY)
        wait("the third worker has tasks", lambda: any(cluster.owner(n).id == third.id for n in names), 60)
        after = {name: (cluster.owner(name).id, cluster.task_pid(name)) for name in names}
        moved = [name for name in names if before[name][0] != after[name][0]]
        assert 1 <= len(moved) <= 2, json.dumps(moved)
        assert {n: before[n] for n in names if n not in moved} == {n: after[n] for n in names if n not in moved}
        cluster.workers.pop(third.id)
        third.process.stop(timeout_s=120)
        assert third.process.returncode == 0
        for name in names:
            cluster.owner(name)
    finally:
        for i in range(4):
            cluster.rest("DELETE", f"/connectors/extra-{i}")


def generator(cluster: Cluster, number: int) -> dict[str, str]:
    prefix = f"{cluster.group}-x{number}"
    return {"connector.class": "datagen", "topic.prefix": prefix, "tables": "1", "rows.per.second": "5"}


def test_a_row_is_followed_from_its_commit_to_the_warehouse(cluster: Cluster) -> None:
    key = IDS * 10
    with psycopg.connect(cluster.postgres.dsn(cluster.source_db), autocommit=True) as connection:
        connection.execute("insert into orders (id, customer, state) values (%s, 1, 'new')", (key,))
        connection.execute("update orders set state = 'paid' where id = %s", (key,))
    found: dict[str, Any] = {}

    def arrived() -> bool:
        found.update(cluster.rest("GET", f"/v1/connectors/shop/explain?of=public.orders&key={key}").json())
        return bool(found.get("stages")) and all(stage["found"] for stage in found["stages"])

    try:
        wait("every stage is found", arrived, CATCH_UP_S, 1.0)
    except AssertionError as error:
        raise AssertionError(f"{error}: {found}") from None
    stages = {stage["stage"]: stage for stage in found["stages"]}
    assert list(stages) == ["commit", "topic", "task", "transaction", "position", "sink"]
    assert found["op"] == "update"
    assert stages["topic"]["topic"] == f"{cluster.group}.public.orders"
    assert stages["task"]["worker"] == cluster.owner("shop").id
    sink, lsn = stages["sink"], stages["commit"]["commit_lsn"]
    assert (sink["sink"], sink["row"]) == ("warehouse", "this")
    assert sink["next_offset"] > stages["topic"]["offset"]
    assert sink["batch"] >= 0
    with psycopg.connect(cluster.postgres.dsn(cluster.warehouse_db)) as connection:
        row = connection.execute("select _cdc_position from orders where id = %s", (key,)).fetchone()
        assert row
        assert int.from_bytes(row[0][:8], "big") == lsn
        at = connection.execute(
            "select next_offset from _cdcworker.ledger where topic = %s", (stages["topic"]["topic"],)
        )
        assert at.fetchone()[0] >= sink["next_offset"]


PLANTED = 1_918_273_645
"""A key that the load never touches, with digits that nothing else shows."""
TOLD = "text of the row that was planted"
SLOW_S = 0.05
"""Rows stand still for a while between two changes, longer than a busy machine takes to bring one over."""


def verified(cluster: Cluster) -> subprocess.CompletedProcess[str]:
    urls = [part for worker in cluster.workers.values() for part in ("--url", worker.url)]
    argv = [COMMAND, "verify", "warehouse", *urls]
    return subprocess.run(argv, capture_output=True, text=True, timeout=240, check=False)


def verdicts(report: str) -> dict[str, tuple[str, list[str]]]:
    """Of each table the verdict and the lines below it."""
    found: dict[str, tuple[str, list[str]]] = {}
    for line in report.splitlines():
        if line.startswith("public."):
            table, *_, verdict = line.split()
            found[table] = (verdict, [])
        elif line.startswith(" ") and found:
            found[table][1].append(line.strip())
    return found


def await_metrics(cluster: Cluster, verdict: str, differences: int) -> None:
    """The leader alone shows them, once the comparison is on record."""
    wanted = {
        f'result{{connector="warehouse",result="{verdict}"}}': 1.0,
        'differences{connector="warehouse"}': differences,
    }
    found: dict[str, float] = {}

    def shown() -> bool:
        texts = "\n".join(plain_http.get(f"{w.url}/metrics", timeout=30).text for w in cluster.workers.values())
        pairs = re.findall(r"^cdc_verify_((?:result|differences)\{.*\}) (\S+)$", texts, re.MULTILINE)
        found.clear()
        found.update((name, float(value)) for name, value in pairs)
        return found == wanted

    try:
        wait("the metrics of the comparison", shown)
    except AssertionError as error:
        raise AssertionError(f"{error}: {found}") from None


@contextlib.contextmanager
def planted(cluster: Cluster) -> Iterator[None]:
    """One changed value and one missing row in the warehouse; afterwards their rows are gone on both sides."""
    source, warehouse = (cluster.postgres.dsn(name) for name in (cluster.source_db, cluster.warehouse_db))
    both = "select count(*) from (select id from orders where id = %s union all select id from notes where id = %s) f"

    def there() -> int:
        with psycopg.connect(warehouse) as connection:
            found = connection.execute(both, (PLANTED, PLANTED)).fetchone()
            return int(found[0]) if found else 0

    with psycopg.connect(source, autocommit=True) as connection:
        connection.execute("insert into orders (id, customer, state) values (%s, 1, %s)", (PLANTED, TOLD))
        connection.execute("insert into notes (id, body) values (%s, %s)", (PLANTED, TOLD))
        try:
            wait("both rows arrive", lambda: there() == 2, CATCH_UP_S)
            with psycopg.connect(warehouse) as target:
                target.execute("update orders set state = %s where id = %s", (f"another {TOLD}", PLANTED))
                target.execute("delete from notes where id = %s", (PLANTED,))
            yield
        finally:
            connection.execute("delete from orders where id = %s", (PLANTED,))
            connection.execute("delete from notes where id = %s", (PLANTED,))


@pytest.mark.long
@pytest.mark.parametrize("load", [SLOW_S], indirect=True)
def test_a_sink_is_verified_while_rows_move_and_what_was_planted_is_told(cluster: Cluster, load: Load) -> None:
    before = load.transactions
    equal = verified(cluster)
    # Of the load that runs before and after it some has moved rows meanwhile.
    assert load.transactions > before
    assert equal.returncode == 0, equal
    assert verdicts(equal.stdout) == {f"public.{table}": ("equal", []) for table in TABLES}
    await_metrics(cluster, "equal", 0)
    with planted(cluster):
        different = verified(cluster)
        asked = cluster.rest("POST", "/v1/connectors/warehouse/verify")
        assert asked.status_code == 202, asked.text
        answers: list[Any] = []

        def compared() -> bool:
            answers.append(cluster.rest("GET", "/v1/connectors/warehouse/verify"))
            found = answers[-1].json()
            return found["id"] == asked.json()["id"] and found["state"] != "running"

        wait("the comparison that was asked for", compared, CATCH_UP_S)
        await_metrics(cluster, "different", 2)
    assert different.returncode == 1, different
    assert_told(different.stdout)
    assert answers[-1].json()["state"] == "done", answers[-1].text
    tables = {table["table"]: table for table in answers[-1].json()["result"]["tables"]}
    counts = {name: {kind: n for kind, n in table["differences"].items() if n} for name, table in tables.items()}
    assert counts == {"public.orders": {"different": 1}, "public.notes": {"missing": 1}, "public.places": {}}
    logs = [path.read_text() for path in cluster.directory.glob("*.log")]
    for text in (different.stdout, different.stderr, *(answer.text for answer in answers), *logs):
        assert TOLD not in text
        assert str(PLANTED) not in text


def assert_told(report: str) -> None:
    found = verdicts(report)
    assert {table: verdict for table, (verdict, _) in found.items()} == {
        "public.orders": "different",
        "public.notes": "different",
        "public.places": "equal",
    }
    assert found["public.orders"][1][0] == "1 row different"
    assert re.fullmatch(r"different +#[0-9a-f]{16}  \(state\)", found["public.orders"][1][1])
    assert found["public.notes"][1][0] == "1 row missing in the warehouse"
    assert report.splitlines()[-1] == "DIFFERENT: 2 rows in 2 of 3 tables"


SHOWN_LATER = {
    "cdc_slot_safe_bytes": "the server has no limit",
    "cdc_slot_lost_in_seconds": "nothing grows",
    "cdc_slot_failover_ready": "before PostgreSQL 17 there is no such slot",
    "cdc_snapshot_left_seconds": "no snapshot is under way",
    "cdc_source_filtered_records": "no transform leaves records out",
    "cdc_source_lag_transactions": "of MySQL and MariaDB",
    "cdc_binlog_bytes": "of MySQL and MariaDB",
    "cdc_binlog_expires_in_seconds": "of MySQL and MariaDB",
    "cdc_sink_table_files": "of lakes",
    "cdc_sink_table_file_bytes": "of lakes",
    "cdc_sink_table_delete_files": "of lakes",
    **{
        f"cdc_sink_maintenance_{what}": "of lakes"
        for what in (
            "runs",
            "seconds",
            "failures",
            "conflicts",
            "expired_snapshots",
            "removed_files",
            "rewritten_bytes",
            "rewritten_files",
        )
    },
}


def test_real_tasks_report_every_metric_of_the_table(cluster: Cluster, load: Load) -> None:
    wanted = {m.name: f"{m.name}_count" if m.kind == "histogram" else m.shown for m in (*SOURCE, *SINK)}
    missing: set[str] = set()

    def reported() -> bool:
        texts = "\n".join(plain_http.get(f"{w.url}/metrics", timeout=30).text for w in cluster.workers.values())
        shown = set(re.findall(r"^(cdc_\w+)", texts, re.MULTILINE))
        missing.clear()
        missing.update(name for name, series in wanted.items() if series not in shown)
        return not missing - SHOWN_LATER.keys()

    try:
        wait("every metric", reported, CATCH_UP_S, 0.5)
    except AssertionError:
        raise AssertionError(f"never reported: {missing}") from None
