"""Parquet files in a bucket whose server loses answers, is busy, answers late, or refuses: nothing is lost and nothing doubled."""

from __future__ import annotations

import http.server
import threading
import uuid

import botocore.auth
import pytest
from cdcworker.connectors.config import allowed_hosts
from cdcworker.connectors.config.allowed_hosts import HostPolicy
from cdcworker.connectors.warehouses.parquet import kind
from cdcworker.connectors.warehouses.parquet.consistent_sets import ParquetSets
from cdcworker.connectors.warehouses.parquet.writer import ParquetWriter
from cdcworker.connectors.warehouses.storage import object_store, s3_client
from cdcworker.connectors.warehouses.stores import judged_hosts
from cdcworker.connectors.warehouses.table_state import Manifests
from cdcworker.schemas.errors import CdcError

from tests import change_streams
from tests.contract import warehouses as contract
from tests.s3_faults import FaultProxy, later, put_of
from tests.s3_server import BUCKET, HOST, bucket_at, sink_config

pytestmark = pytest.mark.s3
TABLE = "public/orders"
ANSWER_S_MAX = 2.0
"""Of a server that is to be given up."""


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
    writer = ParquetWriter(files, "sink", buckets=2)
    writer.fence(epoch)
    writer.claim([contract.TOPIC])
    return writer


def batches(stream, *ids):
    """More rows of a topic."""
    for number in ids:
        stream.insert(change_streams.NARROW, (number, 1, "a", "b"))


def apply(writer, stream):
    """What a driver does: it reads the ledger, and applies what lies behind."""
    batch = stream.assembler().build(change_streams.arrow(stream.records), writer.ledger(), 1)
    return writer.apply(batch)


def refused(step):
    with pytest.raises(CdcError) as caught:
        step()
    return caught.value


def test_whichever_answer_is_lost_each_row_is_there_once(s3, proxy, prefix):
    lose_each(s3, proxy, prefix, "lost", owners=False)


@pytest.mark.long
@pytest.mark.parametrize("how", ["lost", "cut", "busy"])
def test_whichever_answer_fails_when_a_task_begins_each_row_is_there_once(s3, proxy, prefix, how):
    lose_each(s3, proxy, prefix, how, owners=True)


def lose_each(s3, proxy, prefix, how, owners):
    """Each of the requests of a batch fails, every second one twice; with `owners` each time in a new task."""
    files, stream = bucket_at(proxy.endpoint, prefix), change_streams.Stream(1)
    writer = writer_of(files)
    batches(stream, 1)
    apply(writer, stream)
    before = len(proxy.requests)
    batches(stream, 2)
    if owners:
        writer = writer_of(files, (2, 0))
    apply(writer, stream)
    for at in range(len(proxy.requests) - before):
        fault = proxy.plan(how, later(at), 1 + at % 2)
        batches(stream, 3 + at)
        if owners:
            writer = writer_of(files, (3 + at, 0))
        apply(writer, stream)
        proxy.faults.remove(fault)
        assert len(fault.seen) == 1 + at % 2
    reader = ParquetWriter(s3.files(prefix), "sink")
    assert contract.rows(reader, "id") == sorted([(number,) for number in range(1, at + 4)], key=repr)
    assert dict(reader.ledger()) == {(contract.TOPIC, 0): stream.records[-1]["offset"] + 1}


def test_a_state_is_made_once_though_the_put_was_answered_with_an_error(s3, proxy, prefix):
    files, stream = bucket_at(proxy.endpoint, prefix), change_streams.Stream(1)
    writer = writer_of(files)
    batches(stream, 1)
    apply(writer, stream)
    for number, how in enumerate(("lost", "cut"), 2):
        fault = proxy.plan(how, put_of("/_cdc/0"))
        batches(stream, number)
        assert apply(writer, stream)["rows"] == 1
        assert fault.seen
    manifests = Manifests(s3.files(prefix), TABLE)
    assert manifests._names() == [f"{number:012d}.json" for number in (3, 2, 1)]
    assert contract.rows(writer, "id") == [(1,), (2,), (3,)]


def test_a_store_that_stays_busy_is_waited_for(s3, proxy, prefix, monkeypatch):
    monkeypatch.setattr(object_store, "RETRY_S_MAX", 0.5)
    files, stream = bucket_at(proxy.endpoint, prefix), change_streams.Stream(1)
    writer = writer_of(files)
    batches(stream, 1)
    fault = proxy.plan("busy", put_of("/_cdc/0"), times=1000)
    error = refused(lambda: apply(writer, stream))
    assert (error.code, error.kind, error.where["bucket"]) == ("spark.target_unreachable", "transient", "warehouse")
    assert "SlowDown" in error.message
    assert Manifests(s3.files(prefix), TABLE).newest() is None
    fault.times = 0
    apply(writer, stream)
    assert contract.rows(writer, "id") == [(1,)]


def with_a_put_on_its_way(files, proxy):
    """A writer that has given up its second batch, whose manifest the proxy holds until it is released."""
    writer, stream = writer_of(files), change_streams.Stream(1)
    batches(stream, 1)
    apply(writer, stream)
    batches(stream, 2)
    held = proxy.plan("held", put_of("/_cdc/0"))
    assert refused(lambda: apply(writer, stream)).code == "spark.target_unreachable"
    return writer, stream, held


@pytest.mark.parametrize("next_owner", [False, True])
def test_a_put_that_arrives_late_changes_nothing(s3, proxy, prefix, impatient, next_owner):
    """The writer gave it up; its next try, or the next owner of the topic, has taken the number meanwhile."""
    writer, stream, held = with_a_put_on_its_way(bucket_at(proxy.endpoint, prefix), proxy)
    if next_owner:
        writer = writer_of(s3.files(prefix), (2, 0))
    apply(writer, stream)
    held.release.set()
    assert held.done.wait(30)
    batches(stream, 3)
    apply(writer, stream)
    assert contract.rows(writer, "id") == [(1,), (2,), (3,)]
    assert len(Manifests(s3.files(prefix), TABLE)._names()) == (4 if next_owner else 3)


def test_a_put_that_arrives_between_the_ledger_and_the_next_try_is_found_and_kept(s3, proxy, prefix, impatient):
    files = bucket_at(proxy.endpoint, prefix)
    writer, stream, held = with_a_put_on_its_way(files, proxy)
    batches(stream, 3)
    batch = stream.assembler().build(change_streams.arrow(stream.records), writer.ledger(), 1)
    create = files.create

    def late(path, content):
        held.release.set()
        assert held.done.wait(30)
        create(path, content)

    files.create = late
    # The task does not end as if another one had taken its place.
    error = refused(lambda: writer.apply(batch))
    assert (error.code, error.kind) == ("spark.target_unreachable", "transient")
    apply(writer, stream)
    assert contract.rows(writer, "id") == [(1,), (2,), (3,)]


def test_a_set_that_arrives_late_is_gone_on_from(s3, proxy, prefix, impatient):
    sets = ParquetSets(bucket_at(proxy.endpoint, prefix), "sink")
    sets.claim((1, 0))
    held = proxy.plan("held", put_of("/sets/"))
    assert refused(lambda: sets.publish((1, 0), {}, {("t", 0): 1})).code == "spark.target_unreachable"
    held.release.set()
    assert held.done.wait(30)
    assert refused(lambda: sets.publish((1, 0), {}, {("t", 0): 2})).code == "spark.target_unreachable"
    sets.publish((1, 0), {}, {("t", 0): 2})
    newest = ParquetSets(s3.files(prefix), "sink")
    newest.claim((1, 0))
    assert (newest.number, newest.marks) == (3, {("t", 0): 2})


def test_of_many_who_make_a_file_one_succeeds(s3, prefix):
    files = [s3.files(prefix) for _ in range(4)]
    for number in range(10):
        barrier, won = threading.Barrier(len(files)), []

        def make(mine, number=number, barrier=barrier, won=won):
            barrier.wait()
            try:
                mine.create(f"{number}.json", b"{}")
                won.append(mine)
            except FileExistsError:
                pass

        threads = [threading.Thread(target=make, args=(mine,)) for mine in files]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1


@pytest.mark.parametrize("before", [b"1", None])
def test_a_change_that_comes_between_is_not_overwritten(s3, prefix, before):
    mine, other, seen = s3.files(prefix), s3.files(prefix), []
    if before:
        mine.replace("file", before)

    def change(found):
        seen.append(found)
        if len(seen) == 1:
            other.replace("file", b"other")
        return (found or b"") + b"mine"

    mine.update("file", change)
    assert seen == [before, b"other"]
    assert mine.read("file") == b"othermine"


def test_a_file_that_is_removed_meanwhile_does_not_come_back_by_a_change(s3, prefix):
    files = s3.files(prefix)
    files.replace("file", b"1")

    def change(found):
        files.remove(["file"])
        return None if found is None else b"2"

    files.update("file", change)
    assert not files.exists("file")


# -- what is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"warehouse.path": "s3://not-there/x"}, "spark.target_bucket"),
        ({"warehouse.s3.access.key": "nobody"}, "spark.target_auth"),
        ({"warehouse.s3.secret.key": "wrong"}, "spark.target_auth"),
    ],
)
def test_what_the_store_refuses_has_a_code_and_says_no_secret(s3, prefix, more, code):
    error = refused(lambda: writer_of(bucket_at(s3.endpoint, prefix, **more)))
    assert (error.code, error.kind) == (code, "config")
    assert "secret" not in error.message
    assert "wrong" not in error.message
    (finding,) = kind.probe(sink_config(s3.endpoint, f"s3://{BUCKET}/{prefix}", **more))
    assert (finding.code, finding.key) == (code, next(iter(more)).replace("secret", "access"))


def test_a_bucket_that_is_there_is_found_when_a_config_is_checked(s3, prefix):
    assert kind.probe(sink_config(s3.endpoint, f"s3://{BUCKET}/{prefix}")) == []
    assert s3.files(prefix).names("", "") == []


def test_a_clock_that_is_wrong_has_a_code(s3, prefix, monkeypatch):
    import datetime as dt

    files, now = bucket_at(s3.endpoint, prefix), botocore.auth.get_current_datetime
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda *args: now(*args) - dt.timedelta(days=1))
    assert refused(lambda: writer_of(files)).code == "spark.target_clock"


def test_a_server_that_is_down_is_waited_for(s3, prefix, unused_port, impatient):
    error = refused(lambda: writer_of(bucket_at(f"http://{HOST}:{unused_port}", prefix)))
    assert (error.code, error.kind) == ("spark.target_unreachable", "transient")


@pytest.fixture
def unused_port():
    from cdcworker.worker.devstack.ports import free_ports

    return free_ports(1)[0]


@pytest.mark.parametrize("times", [2, 1])
def test_a_store_that_does_not_do_conditional_puts_is_refused(proxy, prefix, times):
    """It says that it has done them: with 2 any, with 1 those that name a version."""
    files = bucket_at(proxy.endpoint, prefix)
    if times == 1:
        files.create(object_store.MARKER, b"")
    seen = iter(range(9))
    proxy.plan("accepted", lambda m, p: put_of("conditional-put")(m, p) and (times == 2 or next(seen) == 1), times)
    error = refused(lambda: files.begin({"sink": "sink"}))
    assert (error.code, error.kind) == ("spark.target_store_unfit", "config")


def test_an_answer_that_points_elsewhere_is_not_followed(proxy, prefix):
    came = []

    class Elsewhere(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            came.append(self.path)
            self.send_error(404)

        do_PUT = do_HEAD = do_GET

    server = http.server.HTTPServer((HOST, 0), Elsewhere)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        proxy.plan("moved", lambda _method, _path: True, 100, f"http://{HOST}:{server.server_port}/stolen")
        files = bucket_at(proxy.endpoint, prefix)
        for step in (lambda: files.read("x"), lambda: files.replace("x", b""), lambda: files.names("x", "")):
            assert refused(step).code == "spark.target_bucket"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert came == []


def test_a_host_that_the_worker_closes_is_closed_to_a_task_that_runs(s3, prefix, monkeypatch):
    files = bucket_at(s3.endpoint, prefix)
    files.replace("x", b"1")
    monkeypatch.setattr(allowed_hosts, "_policy", HostPolicy(loopback=False))
    monkeypatch.setattr(judged_hosts, "JUDGED_S", 0.0)
    assert refused(lambda: files.read("x")).code == "config.host_not_allowed"
    assert refused(lambda: bucket_at(s3.endpoint, prefix)).code == "config.host_not_allowed"


def test_a_name_that_leads_elsewhere_when_a_connection_is_opened_is_closed(s3, prefix, monkeypatch):
    """It led to an address that is open when the host was judged."""
    endpoint = s3.endpoint.replace(HOST, "localhost")
    files = bucket_at(endpoint, prefix)
    monkeypatch.setattr(allowed_hosts, "_policy", HostPolicy(loopback=False))
    assert refused(lambda: files.read("x")).code == "config.host_not_allowed"


def test_what_the_environment_of_the_worker_holds_is_not_used(proxy, s3, prefix, monkeypatch):
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.setenv(name, f"http://{HOST}:9")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of the worker")
    monkeypatch.setenv("AWS_PROFILE", "of-the-worker")
    bucket_at(s3.endpoint, prefix).replace("x", b"1")
    assert s3.files(prefix).read("x") == b"1"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "worker")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "worker")
    error = refused(lambda: bucket_at(s3.endpoint, prefix, **{"warehouse.s3.access.key": "nobody"}).read("x"))
    assert error.code == "spark.target_auth"


def test_a_file_that_is_larger_than_what_is_read_at_once_is_read_in_ranges(s3, prefix, monkeypatch):
    files, stream = s3.files(prefix), change_streams.Stream(1)
    writer = writer_of(files)
    batches(stream, *range(50))
    apply(writer, stream)
    monkeypatch.setattr(object_store, "WHOLE_BYTES", 1024)
    batches(stream, 50)
    apply(writer, stream)
    assert len(contract.rows(writer, "id")) == 51


def test_a_folder_of_more_files_than_a_listing_has_is_listed_whole(s3, prefix, monkeypatch):
    files = s3.files(prefix)
    for number in range(5):
        files.replace(f"a/{number}.json", b"")
        files.replace(f"b{number}/x", b"")
    call = files._call

    def paged(operation, **arguments):
        more = {"MaxKeys": 2} if operation == "list_objects_v2" else {}
        return call(operation, **{**arguments, **more})

    monkeypatch.setattr(files, "_call", paged)
    assert files.names("a", ".json") == [f"{number}.json" for number in range(5)]
    assert files.folders("") == ["a", *(f"b{number}" for number in range(5))]
