"""The demo's proof on a real server: equal databases are equal, every kind of planted difference is found."""

from __future__ import annotations

import psycopg
import pytest
from cdcworker.worker.quickstart import catch_up as caughtup
from cdcworker.worker.quickstart import proof
from cdcworker.worker.quickstart.loader import LoadGenerator
from cdcworker.worker.quickstart.postgres_shop import PostgresShop
from cdcworker.worker.quickstart.workload import KEY_STEP, TABLES, Workload

pytestmark = pytest.mark.postgres
TRANSACTIONS = 150


@pytest.fixture(scope="module")
def pair(postgres):
    """A source and a copy of it; the copy has a bookkeeping column, as a warehouse has."""
    names = [postgres.create_database(), postgres.create_database()]
    for name in names:
        loader = LoadGenerator(
            PostgresShop(postgres.dsn(name)), Workload(column_after=50), rate=1e6, transactions=TRANSACTIONS
        )
        loader.prepare()
        loader.start()
        loader.join(60)
        assert loader.error is None
    with psycopg.connect(postgres.dsn(names[1])) as connection:
        for table in TABLES:
            connection.execute(f"ALTER TABLE {table} ADD COLUMN _cdc_position bytea")
    yield [postgres.dsn(name) for name in names]
    for name in names:
        postgres.drop_database(name)


def different(pair, *statements: str) -> set[str]:
    """The tables that differ after the statements ran in the copy; they are undone afterwards."""
    source = proof.read_source(pair[0], "public", TABLES)
    with psycopg.connect(pair[1], autocommit=True) as connection:
        connection.execute("CREATE SCHEMA kept")
        for table in TABLES:
            connection.execute(f"CREATE TABLE kept.{table} (LIKE public.{table} INCLUDING ALL)")
            connection.execute(f"INSERT INTO kept.{table} SELECT * FROM public.{table}")
        try:
            for statement in statements:
                connection.execute(statement)
            return {result.table for result in proof.compare(pair[1], "public", source) if not result.equal}
        finally:
            for table in TABLES:
                connection.execute(f"DROP TABLE IF EXISTS public.{table}")
                connection.execute(f"ALTER TABLE kept.{table} SET SCHEMA public")
            connection.execute("DROP SCHEMA kept")


def test_equal_tables_are_equal_whatever_the_warehouse_adds(pair):
    assert different(pair) == set()
    source = proof.read_source(pair[0], "public", TABLES)
    assert all(checksum.rows > 100 for checksum in source.checksums.values())
    assert source.lsn > 0


def test_another_order_of_rows_and_columns_is_no_difference(pair):
    again = "CREATE TABLE items AS SELECT price, quantity, sku, line, order_id FROM kept.items ORDER BY random()"
    assert different(pair, "DROP TABLE items", again) == set()


@pytest.mark.parametrize(
    ("statement", "table"),
    [
        ("UPDATE orders SET status = 'wrong' WHERE id = (SELECT max(id) FROM orders)", "orders"),
        ("DELETE FROM items WHERE order_id = (SELECT max(order_id) FROM items)", "items"),
        ("UPDATE customers SET email = '' WHERE id = (SELECT min(id) FROM customers WHERE email IS NULL)", "customers"),
        ("UPDATE customers SET profile = 'x' || substr(profile, 2) WHERE id = 1", "customers"),
        (
            "UPDATE orders SET placed_at = placed_at + interval '1 microsecond' WHERE id = (SELECT max(id) FROM orders)",
            "orders",
        ),
        (
            "UPDATE orders SET weight = weight + 1e-14 WHERE id = (SELECT min(id) FROM orders WHERE weight < 30)",
            "orders",
        ),
        ("INSERT INTO items SELECT order_id, line + 100, sku, quantity, price FROM items LIMIT 1", "items"),
        (
            "UPDATE items SET sku = quantity, quantity = price WHERE order_id = (SELECT max(order_id) FROM items)",
            "items",
        ),
        ("ALTER TABLE customers DROP COLUMN loyalty", "customers"),
        ("ALTER TABLE orders ALTER placed_at TYPE text USING 'not a time'", "orders"),
        ("DROP TABLE orders", "orders"),
        ("TRUNCATE items", "items"),
    ],
)
def test_every_planted_difference_is_found(pair, statement, table):
    assert different(pair, statement) == {table}


def test_two_rows_that_swap_a_value_are_found(pair):
    ends = "(SELECT min(id) FROM orders), (SELECT max(id) FROM orders)"
    swap = f"UPDATE orders o SET total = p.total FROM orders p WHERE o.id IN ({ends}) AND p.id IN ({ends}) AND o.id <> p.id"
    assert different(pair, swap) == {"orders"}


def test_the_load_goes_on_behind_rows_that_are_there(postgres):
    name = postgres.create_database()
    try:
        for _ in range(2):
            loader = LoadGenerator(
                PostgresShop(postgres.dsn(name)), Workload(column_after=5), rate=1e6, transactions=30
            )
            loader.prepare()
            loader.start()
            loader.join(60)
            assert loader.error is None
        with psycopg.connect(postgres.dsn(name)) as connection:
            highest, total = connection.execute(
                "SELECT max(id %% %s), count(*) FROM customers", (KEY_STEP,)
            ).fetchone() or (0, 0)
        assert highest == total > 400
    finally:
        postgres.drop_database(name)


def test_a_load_that_is_held_waits_there(postgres, until):
    name = postgres.create_database()
    loader = LoadGenerator(PostgresShop(postgres.dsn(name)), Workload(), rate=1e6, transactions=20)
    try:
        loader.prepare()
        loader.pause_at(10)
        loader.start()
        until(lambda: loader.workload.transactions == 10)
        assert loader.is_alive()
        loader.release()
        until(lambda: loader.done)
        assert loader.workload.transactions == 20
    finally:
        loader.finish()
        postgres.drop_database(name)


@pytest.mark.kafka
def test_waiting_for_records_names_what_lags_and_counts_no_control_records(kafka, postgres):
    from cdcworker.schemas.errors import CdcError
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    topics = ["proof.data", "proof.watermark", "proof.empty"]
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for future in admin.create_topics([NewTopic(topic, 1, 1) for topic in topics]).values():
        future.result(20)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": "proof"})
    producer.init_transactions(30)
    for commit in (True, False):
        producer.begin_transaction()
        for _ in range(3):
            producer.produce("proof.data", b"x")
        producer.produce("proof.watermark", b'{"v":1,"commit_lsn":100,"ts_ms":1}' if commit else b'{"commit_lsn":999}')
        producer.flush(10)
        producer.commit_transaction(30) if commit else producer.abort_transaction(30)
    assert caughtup.next_offsets(kafka.bootstrap, ["proof.data", "proof.empty"]) == {("proof.data", 0): 3}
    deadline = caughtup.CatchUpDeadline(20)
    assert caughtup.wait_for_watermark(kafka.bootstrap, "proof.watermark", 100, deadline) == 100
    with pytest.raises(CdcError, match=r"handed on 100 of log position 101"):
        caughtup.wait_for_watermark(kafka.bootstrap, "proof.watermark", 101, caughtup.CatchUpDeadline(1))
    name = postgres.create_database()
    with pytest.raises(CdcError, match=r"the sink s has applied proof.data/0 at 0 of 3"):
        caughtup.wait_for_ledger(postgres.dsn(name), "s", {("proof.data", 0): 3}, caughtup.CatchUpDeadline(0.1))
    with psycopg.connect(postgres.dsn(name)) as connection:
        connection.execute("CREATE SCHEMA _cdcworker")
        connection.execute("CREATE TABLE _cdcworker.ledger (sink text, topic text, partition int, next_offset bigint)")
        connection.execute("INSERT INTO _cdcworker.ledger VALUES ('s', 'proof.data', 0, 3)")
    caughtup.wait_for_ledger(postgres.dsn(name), "s", {("proof.data", 0): 3}, deadline)
    postgres.drop_database(name)
