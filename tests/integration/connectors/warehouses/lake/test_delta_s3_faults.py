"""Delta tables that the sink writes to a bucket by their files, without Spark: a server that loses answers, is busy, answers late or
refuses, and drivers that are killed. Nothing is lost and nothing doubled."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import uuid

import pytest
from cdcworker.connectors.sink_engine.warehouse_kinds import kind_of
from cdcworker.connectors.warehouses.lake.tables import LakeName
from cdcworker.connectors.warehouses.storage import object_store, s3_client
from cdcworker.schemas.errors import CdcError

from tests import change_streams
from tests.contract import warehouses as contract
from tests.integration.connectors.warehouses.parquet import killed_writer as script
from tests.s3_faults import FaultProxy, later, put_of
from tests.s3_server import BUCKET, HOST, bucket_at, sink_config
from tests.unit.connectors.warehouses.lake.delta_files.file_lake import opened

from . import killed_delta_writer

pytestmark = pytest.mark.s3
ORDERS = LakeName("public", "orders")
LOG = "public/orders/_delta_log"
ANSWER_S_MAX = 2.0
"""Of a server that is to be given up."""
LAST = (1000, 0)
"""The epoch of a reader that comes after all writers."""


@pytest.fixture
def proxy(s3):
    with FaultProxy(HOST, s3.port) as proxy:
        yield proxy


@pytest.fixture
def prefix():
    return uuid.uuid4().hex


@pytest.fixture
def impatient(monkeypatch):
    """A client gives an answer up soon, and does not ask again."""
    monkeypatch.setattr(s3_client, "READ_S_MAX", ANSWER_S_MAX)
    monkeypatch.setattr(object_store, "RETRY_S_MAX", 0.0)


def writer_of(files, epoch=(1, 0)):
    writer = opened(files, epoch)
    writer.claim([contract.TOPIC])
    return writer


def insert(stream, *ids):
    for number in ids:
        stream.insert(change_streams.NARROW, (number, 1, "a", "b"))


def batch_of(writer, stream):
    return stream.assembler().build(change_streams.arrow(stream.records), writer.ledger(), 1)


def apply(writer, stream):
    """What a driver does: it claims its topics, reads the ledger, and applies what lies behind."""
    writer.claim([contract.TOPIC])
    return writer.apply(batch_of(writer, stream))


def refused(step):
    with pytest.raises(CdcError) as caught:
        step()
    return caught.value


def versions(s3, prefix):
    """A table's first batch makes three: the table, its columns, and the rows."""
    return sorted(int(name[:20]) for name in s3.files(prefix).names(LOG, ".json"))


# -- lost answers ---------------------------------------------------------------------------------------------------------


def test_whichever_answer_is_lost_each_row_is_there_once(s3, proxy, prefix):
    """Each fourth of the requests of a batch fails, every second of them twice. A row of the batch before is changed, so that its
    file gets a deletion vector or is written again."""
    files, stream = bucket_at(proxy.endpoint, prefix), change_streams.Stream(1)
    writer = writer_of(files)
    insert(stream, 0)
    apply(writer, stream)
    for at in itertools.count():
        before = len(proxy.requests)
        fault = proxy.plan("lost", later(4 * at), 1 + at % 2)
        insert(stream, at + 1)
        stream.update(change_streams.NARROW, (at, at + 2, "c", "d"))
        apply(writer, stream)
        proxy.faults.remove(fault)
        if len(proxy.requests) - before <= 4 * at:
            break
    assert at > 2
    holds(s3, prefix, stream, {**{number: number + 2 for number in range(at + 1)}, at + 1: 1})


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("how", ["lost", "cut", "busy"])
def test_whichever_answer_fails_when_a_task_begins_each_row_is_there_once(s3, proxy, prefix, how):
    """Each of the requests of a task's begin and of its first batch fails, every second one twice; a table each."""
    faulty = bucket_at(proxy.endpoint, prefix)
    for at in itertools.count():
        home, stream = f"{prefix}/{at}", change_streams.Stream(1)
        insert(stream, 0)
        apply(writer_of(s3.files(home)), stream)
        insert(stream, 1)
        stream.update(change_streams.NARROW, (0, 2, "c", "d"))
        before = len(proxy.requests)
        fault = proxy.plan(how, later(at), 1 + at % 2)
        apply(writer_of(faulty.below(str(at)), (2, 0)), stream)
        proxy.faults.remove(fault)
        holds(s3, home, stream, {0: 2, 1: 1})
        if len(proxy.requests) - before <= at:
            break
    assert at > 20


def holds(s3, prefix, stream, wanted):
    """The table has these rows, and its ledger all of the stream."""
    reader = opened(s3.files(prefix), LAST)
    reader.claim([contract.TOPIC])
    assert dict(contract.rows(reader, "id", "n")) == wanted
    assert dict(reader.ledger()) == {(contract.TOPIC, 0): stream.records[-1]["offset"] + 1}


def test_a_version_is_made_once_though_the_put_was_answered_with_an_error(s3, proxy, prefix):
    files, stream = bucket_at(proxy.endpoint, prefix), change_streams.Stream(1)
    writer = writer_of(files)
    insert(stream, 1)
    apply(writer, stream)
    for number, how in enumerate(("lost", "cut"), 2):
        fault = proxy.plan(how, put_of(f"{LOG}/"))
        insert(stream, number)
        assert apply(writer, stream)["rows"] == 1
        assert fault.seen
    assert versions(s3, prefix) == [0, 1, 2, 3, 4]
    assert contract.rows(writer, "id") == [(1,), (2,), (3,)]


def test_a_store_that_stays_busy_is_waited_for(s3, proxy, prefix, monkeypatch):
    monkeypatch.setattr(object_store, "RETRY_S_MAX", 0.5)
    files, stream = bucket_at(proxy.endpoint, prefix), change_streams.Stream(1)
    writer = writer_of(files)
    insert(stream, 1)
    fault = proxy.plan("busy", put_of(f"{LOG}/{1:020d}"), times=1000)
    error = refused(lambda: apply(writer, stream))
    assert (error.code, error.kind, error.where["bucket"]) == ("spark.target_unreachable", "transient", BUCKET)
    assert versions(s3, prefix) == [0]
    fault.times = 0
    apply(writer, stream)
    assert contract.rows(writer, "id") == [(1,)]


# -- late puts ------------------------------------------------------------------------------------------------------------


def with_a_put_on_its_way(files, proxy):
    """A writer that has given up its second batch, whose version the proxy holds until it is released."""
    writer, stream = writer_of(files), change_streams.Stream(1)
    insert(stream, 1)
    apply(writer, stream)
    insert(stream, 2)
    held = proxy.plan("held", put_of(f"{LOG}/"))
    assert refused(lambda: apply(writer, stream)).code == "spark.target_unreachable"
    return writer, stream, held


@pytest.mark.parametrize("next_owner", [False, True])
def test_a_put_that_arrives_late_changes_nothing(s3, proxy, prefix, impatient, next_owner):
    """The writer gave it up; its next try, or the next owner of the topic, has taken the version meanwhile."""
    writer, stream, held = with_a_put_on_its_way(bucket_at(proxy.endpoint, prefix), proxy)
    if next_owner:
        writer = writer_of(s3.files(prefix), (2, 0))
    apply(writer, stream)
    held.release.set()
    assert held.done.wait(30)
    insert(stream, 3)
    apply(writer, stream)
    assert contract.rows(writer, "id") == [(1,), (2,), (3,)]
    assert len(versions(s3, prefix)) == (6 if next_owner else 5)


@pytest.mark.parametrize("moment", ["before the table is read", "before the commit"])
def test_a_put_that_arrives_between_the_ledger_and_the_next_try_is_found_and_kept(s3, proxy, prefix, impatient, moment):
    writer, stream, held = with_a_put_on_its_way(bucket_at(proxy.endpoint, prefix), proxy)
    writer.claim([contract.TOPIC])
    insert(stream, 3)
    batch = batch_of(writer, stream)
    log = writer._tables.log(ORDERS)
    create = log.files.create

    def arrive():
        held.release.set()
        assert held.done.wait(30)

    def late(path, content):
        if path == log.path(3):
            arrive()
        create(path, content)

    if moment == "before the commit":
        log.files.create = late
    else:
        arrive()
    # The task does not end as if another one had taken its place.
    error = refused(lambda: writer.apply(batch))
    assert (error.code, error.kind) == ("spark.target_unreachable", "transient")
    apply(writer, stream)
    assert contract.rows(writer, "id") == [(1,), (2,), (3,)]


def test_of_two_writers_one_makes_a_version(s3, prefix):
    one, stream = writer_of(s3.files(prefix)), change_streams.Stream(1)
    insert(stream, 1)
    apply(one, stream)
    insert(stream, 2)
    batch, found = batch_of(one, stream), one._found(contract.TOPIC, ORDERS)
    other = writer_of(s3.files(prefix), (2, 0))
    one._found = lambda *_: found
    error = refused(lambda: one.apply(batch))
    assert error.code == "spark.ledger_moved"
    assert contract.rows(other, "id") == [(1,)]


# -- drivers that are killed ----------------------------------------------------------------------------------------------

PLACES = (
    *("sink.staged", "sink.files_written", "sink.before_commit@2", "sink.after_commit"),
    *("sink.files_written@2", "sink.before_commit", "sink.after_commit@3"),
)


def test_drivers_that_are_killed_leave_each_row_once(s3, prefix):
    killed_at(s3, prefix, ("sink.files_written@2", "sink.after_commit@2"))


@pytest.mark.long
@pytest.mark.timeout(900)
def test_drivers_that_are_killed_at_every_step_leave_each_row_once(s3, prefix):
    killed_at(s3, prefix, PLACES)


def killed_at(s3, prefix, places):
    """One driver is killed at each of these places; another one writes the rest."""
    for epoch, place in enumerate(places, 1):
        name, _, nth = place.partition("@")
        argv = [sys.executable, "-m", killed_delta_writer.__name__, s3.endpoint, prefix, str(epoch)]
        done = subprocess.run(
            argv,
            env={**os.environ, "CDC_FAILPOINTS": f"{name}=kill@{nth or 1}"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
    killed_delta_writer.write(s3.files(prefix), len(places) + 1)
    reader = opened(s3.files(prefix), LAST)
    reader.claim(script.TOPICS)
    first, other = script.TOPICS
    assert contract.rows(reader, "id", "n", topic=first) == sorted(script.wanted(), key=repr)
    assert contract.rows(reader, "id", topic=other) == [(number,) for number in range(script.STEPS)]
    ends = {(record["topic"], 0): record["offset"] + 1 for record in script.records().records}
    assert dict(reader.ledger()) == ends


# -- what is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "code", "key"),
    [
        ({"warehouse.path": "s3://not-there/x"}, "spark.target_bucket", "warehouse.path"),
        ({"warehouse.s3.access.key": "nobody"}, "spark.target_auth", "warehouse.s3.access.key"),
        ({"warehouse.s3.secret.key": "wrong"}, "spark.target_auth", "warehouse.s3.access.key"),
    ],
)
def test_what_the_store_refuses_has_a_code_and_is_found_when_a_config_is_checked(s3, prefix, more, code, key):
    error = refused(lambda: writer_of(bucket_at(s3.endpoint, prefix, **more)))
    assert (error.code, error.kind) == (code, "config")
    config = sink_config(s3.endpoint, f"s3://{BUCKET}/{prefix}", warehouse="delta", **more)
    (finding,) = kind_of(config).probe(config)
    assert (finding.code, finding.key) == (code, key)


def test_a_store_that_does_not_do_conditional_puts_is_refused_before_a_table_is_made(s3, proxy, prefix):
    proxy.plan("accepted", put_of("conditional-put"), 9)
    error = refused(lambda: writer_of(bucket_at(proxy.endpoint, prefix)))
    assert (error.code, error.kind) == ("spark.target_store_unfit", "config")


@pytest.mark.parametrize("gone", [True, False])
def test_a_table_whose_file_is_gone_or_another_is_left_to_sql(s3, prefix, gone):
    files = s3.files(prefix)
    writer, stream = writer_of(files), change_streams.Stream(1)
    insert(stream, 1, 2)
    apply(writer, stream)
    (name,) = files.names("public/orders", ".parquet")
    if gone:
        files.remove([f"public/orders/{name}"])
    else:
        files.replace(f"public/orders/{name}", b"x")
    writer = writer_of(files, (1, 1))
    stream.update(change_streams.NARROW, (1, 2, "c", "d"))
    with pytest.raises(AssertionError, match="a statement for Spark"):
        apply(writer, stream)
