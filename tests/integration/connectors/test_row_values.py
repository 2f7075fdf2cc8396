"""No value of a row is in what is kept of the texts of drivers: psycopg's, PostgreSQL's, pyarrow's, Spark's, a lake's, Kafka's."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import psycopg
import pyarrow as pa
import pytest
from cdcworker.connectors.postgres.errors import translate
from cdcworker.connectors.sink_errors import from_psycopg
from cdcworker.coordinator.kafka.errors import translate as translate_kafka
from cdcworker.schemas.untrusted.driver_text import KEPT_MAX, kept
from cdcworker.worker.java import jars
from cdcworker.worker.java.runtime import find_java
from cdcworker.worker.task.foreign_output import JavaLines
from confluent_kafka import KafkaError

from tests.integration.connectors.spark_archive import cache_of

CANARY = "canary 0815"
JAVA = "2026-11-25T22:00:00.000 ERROR spark Executor "
TEXTS = {
    f'duplicate key value violates unique constraint "t_pkey"\nDETAIL:  Key (id)=({CANARY}) already exists.': "t_pkey",
    f"Key (id)=({CANARY}) already exists.": "Key",
    f"Could not convert '{CANARY}' with type str: tried to convert to int64": "int64",
    f'ERROR: invalid input syntax for type integer: "{CANARY}"': "type integer",
    f"org.apache.spark.SparkNumberFormatException: [CAST_INVALID_INPUT] The value '{CANARY}' of the type \"STRING\" cannot be"
    " cast SQLSTATE: 22018": "org.apache.spark.SparkNumberFormatException [CAST_INVALID_INPUT] SQLSTATE: 22018",
    f"Lost task 0.0 in stage 3.0 (TID 3) (h executor driver): java.lang.IllegalArgumentException: {CANARY}": "TID 3",
    f"An error occurred while calling o1.sql.\n: org.apache.iceberg.exceptions.ValidationException: {CANARY}":
        "org.apache.iceberg.exceptions.ValidationException",
    f"Caused by: java.lang.Exception: {CANARY}": "java.lang.Exception",
    f"it ended: java.lang.Throwable: {CANARY}": "java.lang.Throwable",
    f"it ended: com.shop.Odd: {CANARY}": "com.shop.Odd",
    f"Cannot parse to a number. value: {CANARY}": "Cannot parse",
    f"Failed row: {CANARY}": "Failed",
    'relation "public.orders" does not exist': 'relation "public.orders" does not exist',
    'column "x" of relation "t" does not exist': 'column "x" of relation "t" does not exist',
    "Broker: Topic authorization failed": "Broker: Topic authorization failed",
}  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_of_a_driver_s_text_names_and_codes_are_kept(text: str) -> None:
    found = kept(text)
    assert CANARY not in found
    assert TEXTS[text] in found
    assert "\n" not in found


@pytest.mark.parametrize("part", ['"', "'", "a.b", "\\", "[A", "value: ", 'table "', "x.", "AException ", "`", ")=("])
def test_any_text_is_read_in_time_and_bounded(part: str) -> None:
    began = time.process_time()
    assert len(kept(part * 200_000)) <= KEPT_MAX
    assert time.process_time() - began < 1.0


def test_of_java_s_lines_frames_and_kinds_stay() -> None:
    java = JavaLines()
    before = f"a line before Java {CANARY}"
    assert java.cleaned(before) == before, "only Java's own lines are cut"
    given = [
        f"{JAVA}Exception in task 0.0 in stage 1.0 (TID 1) org.apache.spark.SparkRuntimeException: {CANARY}",
        f"== SQL (line 1, position 8) ==\nSELECT {CANARY}",
        f"  {CANARY} at the place",
        "\tat org.apache.spark.Task.run(Task.scala:1)",
        "\t... 12 more",
        f"\tat a.B.c(B.scala:1){JAVA}torn: java.lang.Exception: {CANARY}",
        f"\tat a.B.c(B.scala:2) {CANARY}",
        f"Caused by: java.lang.NumberFormatException: For input string: {CANARY}",
        "# A fatal error has been detected by the Java Runtime Environment:",
        "Terminating due to java.lang.OutOfMemoryError: Java heap space",
        "%4|1790000000.000|REQTMOUT|sink#consumer-1| [thrd:main]: 1 request timed out",
        "2026-11-25T22:00:00.000 WARN spark NetworkClient Connection to node -1 could not be established.",
    ]
    found = [java.cleaned(line) for part in given for line in part.split("\n")]
    told = "\n".join(filter(None, found))
    assert CANARY not in told
    for name in ("stage 1.0", "SparkRuntimeException", "Task.scala:1", "12 more", "NumberFormatException", "fatal error",
                 "OutOfMemoryError", "REQTMOUT", "node -1 could not be established"):  # fmt: skip
        assert name in told


STATEMENTS = (
    "insert into t (id, v) values (7, '{0}'), (8, '{0}')",
    "insert into t (id, v) values ('{0}', 'x')",
    "insert into t (id, v, small) values (2, '{0}', 9999999)",
    "insert into t (id, v) values (3, repeat('{0}', 100))",
    "insert into t (id, v, small) values (5, '{0}', -1)",
    "select '{0}'::jsonb",
    "select '{0}'::timestamptz",
    "select '{0}'::int[]",
    "do $$ begin raise exception 'bad %', '{0}'; end $$",
    "do $$ begin raise exception 'bad %', '{0}' using errcode = 'C0815'; end $$",
    "do $$ begin raise exception 'bad %', '{0}' using errcode = '42501'; end $$",
    "do $$ begin execute 'select 1 from \"{0}\"'; end $$",
    "do $$ begin perform 1/0 from (select '{0}') a; end $$",
    "insert into t (id, v) values (null, '{0}')",
    "insert into child values ('{0}')",
)


@pytest.mark.postgres
def test_what_postgresql_says_of_a_value_is_not_told_again(postgres) -> None:
    database = postgres.create_database()
    with psycopg.connect(postgres.dsn(database), autocommit=True) as connection:
        connection.execute(
            "create table t (id int primary key, v varchar(50) unique, small smallint check (small > 0))"
        )
        connection.execute("create table child (v varchar(50) references t (v))")
        quoted = 0
        for statement in STATEMENTS:
            with pytest.raises(psycopg.Error) as caught:
                connection.execute(statement.format(CANARY))
            quoted += CANARY in str(caught.value)
            for told in (translate(caught.value), from_psycopg(caught.value)):
                assert CANARY not in f"{told} {told.to_dict()}", statement
        assert quoted >= 8, "the server's own texts hold it"
        for value in (f"{CANARY}\0", {CANARY}, object):
            with pytest.raises(psycopg.Error) as caught:
                connection.execute("select %s::text", [value])
            for told in (translate(caught.value), from_psycopg(caught.value)):
                assert CANARY not in f"{told} {told.to_dict()}"
        connection.execute("set datestyle = 'SQL'")
        with pytest.raises(psycopg.Error) as caught:
            connection.execute("select 'infinity'::date").fetchall()
        assert "infinity" not in str(translate(caught.value))
    postgres.drop_database(database)


def test_what_pyarrow_and_kafka_say_holds_no_value() -> None:
    with pytest.raises(pa.ArrowInvalid) as caught:
        pa.array([CANARY]).cast(pa.int64())
    assert CANARY in str(caught.value)
    assert CANARY not in kept(str(caught.value))
    told = translate_kafka(KafkaError(KafkaError._FAIL, "reading"), "reading")
    assert told.message.startswith("reading: ")


FAILING = (
    "SELECT cast('{0}' AS int)",
    "SELECT raise_error('{0}')",
    "SELECT assert_true(v = 'x', v) FROM (SELECT explode(array('{0}')) AS v)",
    "SELECT cast(v AS int) FROM (SELECT explode(array('{0}')) AS v)",
    "SELECT to_timestamp(v, 'yyyy') FROM (SELECT explode(array('{0}')) AS v)",
    "SELECT from_json(v, 'a int', map('mode', 'FAILFAST')) FROM (SELECT explode(array('{{{0}')) AS v)",
    "SELECT '{0}' FROM no_table",
    "SELECT {0} {0}",
)
RUN = """
import os, sys, logging
from pathlib import Path
from cdcworker.connectors.sink_errors import from_lake, from_spark
from cdcworker.connectors.spark.runtime.session import JavaRuntime, SparkEngine
from cdcworker.schemas.untrusted.driver_text import kept
from cdcworker.worker.logs.setup import set_up
from cdcworker.worker.task.foreign_output import cleaned_output

set_up("DEBUG", "text")
java, cache, state, libraries, *statements = sys.argv[1:]
heard = 0
with cleaned_output():
    engine = SparkEngine(JavaRuntime(java, tuple(libraries.split(":")), cache=cache), Path(state), lambda: False)
    session = engine.session()
    for statement in statements:
        try:
            session.sql(statement).toArrow()
        except Exception as exc:
            heard += os.environ["CANARY"] in str(exc)
            print(from_lake(exc), from_spark(exc), kept(str(exc)))
            logging.getLogger("sink").error("it failed", exc_info=exc)
    engine.close()
print("heard", heard)
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.spark
def test_what_spark_writes_to_a_task_s_log_holds_no_value(tmp_path) -> None:
    java = str(find_java().home / "bin" / "java")
    libraries = [str(path) for path in jars.ensure("spark")]
    statements = [statement.format(CANARY) for statement in FAILING]
    command = [sys.executable, "-c", RUN, java, cache_of(libraries), str(tmp_path), ":".join(libraries), *statements]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=480, env={**os.environ, "CANARY": CANARY}
    )
    assert "heard" in done.stdout, done.stderr[-5_000:]
    assert int(done.stdout.rpartition("heard ")[2]) >= 5, "Spark's own texts hold it"
    assert [line[:300] for line in (done.stdout + done.stderr).splitlines() if CANARY in line] == []
    assert " ERROR spark Executor " in done.stderr
    assert "SparkNumberFormatException" in done.stderr
