"""Readers of lakes that are no Spark, on tables that a worker's sinks wrote: pyiceberg, and delta-rs, which reads plain tables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path

import psycopg
import pytest

from tests.conftest import REQUIRE_PARTS
from tests.genuine.sources import source_config
from tests.integration.one_worker import Worker

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.postgres,
    pytest.mark.spark,
    pytest.mark.iceberg,
    pytest.mark.long,
    pytest.mark.timeout(900),
]

PYTHON = Path(sys.prefix) / "clients" / "bin" / "python"
LAKE_S_MAX = 400.0
LAKES = {"iceberg": "iceberg", "delta": "delta", "plain": "delta"}
"""By name the kind of warehouse; the plain one has `warehouse.delta.features=none`."""
READ = {
    "iceberg": """
from pathlib import Path
from pyiceberg.table import StaticTable
names = (Path(sys.argv[1]) / "metadata").glob("*.metadata.json")
newest = max(names, key=lambda path: path.stat().st_mtime_ns)
found = StaticTable.from_metadata(str(newest)).scan(selected_fields=("id", "what")).to_arrow()
""",
    "delta": """
from deltalake import DeltaTable
found = DeltaTable(sys.argv[1]).to_pyarrow_table(columns=["id", "what"])
""",
}


def read(kind: str, table: Path) -> list[tuple[int, str]] | str:
    """Its rows, or the error of the reader."""
    if not PYTHON.is_file():
        (pytest.fail if REQUIRE_PARTS else pytest.skip)(f"missing part reader of {kind}: `make clients`")
    script = f"import json, sys\n{READ[kind]}\nprint(json.dumps(found.to_pylist()))"
    done = subprocess.run(
        [str(PYTHON), "-c", script, str(table)],
        capture_output=True, text=True, timeout=120, check=False, env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )  # fmt: skip
    if done.returncode != 0:
        return done.stderr.strip().splitlines()[-1]
    return sorted((row["id"], row["what"]) for row in json.loads(done.stdout.splitlines()[-1]))


@pytest.fixture
def db(postgres):
    name = postgres.create_database()
    with psycopg.connect(postgres.dsn(name), autocommit=True) as connection:
        yield connection
    postgres.drop_database(name)


@pytest.fixture
def lakes(kafka, db, tmp_path):
    """Folders of tables with the same rows, by the lake's name; rows were inserted, changed, deleted and got other keys."""
    db.execute("create table items(id int primary key, what text)")
    db.execute("insert into items select n, 'row ' || n from generate_series(1, 5) n")
    roots = {name: tmp_path / name for name in LAKES}
    for root in roots.values():
        root.mkdir()
    worker = Worker(tmp_path, kafka.bootstrap, f"l{uuid.uuid4().hex[:8]}", **{"file.connector.paths": str(tmp_path)})
    try:
        worker.wait_ready()
        source = source_config(db, worker.group)
        worker.put("shop", {name: value for name, value in source.items() if ".converter" not in name})
        worker.wait_state("shop", "RUNNING")
        topic = f"{worker.group}.public.items"
        worker.wait(lambda: len(worker.read(topic)) == 5, "the rows")
        for name, root in roots.items():
            sink = {"connector.class": "spark", "topics": topic, "warehouse": LAKES[name], "warehouse.path": str(root)}
            plain = {"warehouse.delta.features": "none"} if name == "plain" else {}
            worker.put(name, {**sink, **plain, "trigger.interval.ms": "1000"})
        for name in roots:
            worker.wait(lambda name=name: changes(worker, name) == 5, f"the first rows in {name}", LAKE_S_MAX)
        db.execute("update items set what = 'changed' where id = 2")
        db.execute("delete from items where id = 3; update items set id = 40 where id = 4")
        worker.wait(lambda: read("iceberg", table_of(roots["iceberg"])) == ROWS, "the changes in iceberg", LAKE_S_MAX)
        count = changes(worker, "iceberg")
        for name in ("delta", "plain"):
            worker.wait(lambda name=name: changes(worker, name) == count, f"the changes in {name}", LAKE_S_MAX)
        assert worker.end() == 0
    finally:
        worker.kill()
    return {name: table_of(root) for name, root in roots.items()}


def table_of(root: Path) -> Path:
    return root / "public" / "items"


def changes(worker: Worker, sink: str) -> int:
    return int(worker.task(sink)["metrics"]["changes"])


ROWS = [(1, "row 1"), (2, "changed"), (5, "row 5"), (40, "row 4")]


def test_pyiceberg_and_delta_rs_read_what_is_there_and_delta_rs_says_what_it_lacks(lakes):
    assert read("iceberg", lakes["iceberg"]) == ROWS
    told = read("delta", lakes["delta"])
    assert isinstance(told, str), "it reads them now: say so here and in docs/how-to/warehouse-delta.md"
    assert "reader features" in told
    assert "columnMapping" in told
    assert read("delta", lakes["plain"]) == ROWS
