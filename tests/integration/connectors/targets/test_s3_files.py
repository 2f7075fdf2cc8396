"""What the target of files writes, and what remains of it after lost answers and crashes: a real server of S3 and a folder, without Kafka."""

from __future__ import annotations

import contextlib
import json
import threading
import uuid
from dataclasses import replace

import pytest
from cdcworker.connectors.api.record_target import RecordBatch, TargetPlace, TargetRecord
from cdcworker.connectors.targets.s3.config import CONFIG_DEF
from cdcworker.connectors.targets.s3.target import FilesTarget
from cdcworker.connectors.warehouses.storage import object_store, s3_client
from cdcworker.connectors.warehouses.storage.local_disk import LocalDisk
from cdcworker.schemas.errors import CdcError

from tests.integration.connectors.targets.test_s3 import files_below
from tests.s3_faults import FaultProxy, put_of
from tests.s3_server import ACCESS_KEY, BUCKET, HOST, SECRET_KEY

pytestmark = pytest.mark.s3


class InFolder:
    """A folder as a place."""

    def __init__(self, folder):
        self.store, self.roots = LocalDisk(folder), (str(folder.parent),)
        self.config = {"warehouse.path": str(folder)}


class InBucket:
    """A prefix of a bucket as a place."""

    def __init__(self, server, endpoint):
        prefix = uuid.uuid4().hex
        self.store, self.roots = server.files(prefix), ()
        self.config = {
            "warehouse.path": f"s3://{BUCKET}/{prefix}", "warehouse.s3.endpoint": endpoint, "warehouse.s3.access.key": ACCESS_KEY,
            "warehouse.s3.path.style.access": "true", "warehouse.s3.secret.key": SECRET_KEY,
        }  # fmt: skip


@pytest.fixture
def proxy(s3):
    with FaultProxy(HOST, s3.port) as proxy:
        yield proxy


@pytest.fixture(params=["folder", "bucket"])
def place(request, tmp_path, s3, proxy):
    return InFolder(tmp_path / "files") if request.param == "folder" else InBucket(s3, proxy.endpoint)


@pytest.fixture
def bucket(s3, proxy):
    return InBucket(s3, proxy.endpoint)


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(s3_client, "READ_S_MAX", 2.0)
    monkeypatch.setattr(object_store, "RETRY_S_MAX", 0.0)


def opened(place, epoch=(1, 0), **config):
    own = {
        "topics": "t",
        "file.content": "event",
        **place.config,
        **{name.replace("_", "."): v for name, v in config.items()},
    }
    return FilesTarget(TargetPlace(CONFIG_DEF.parse(own), "s3", place.roots, connector="sink", epoch=epoch))


def batch(*offsets, topic="id", value=lambda offset: {"a": offset % 2}):
    records = [TargetRecord(f"{topic}-0-{n}", "orders", 0, n, 1, None, {"id": n}, None, value(n)) for n in offsets]
    return RecordBatch(records)


def away(*_):
    raise OSError("the server of files is away")


def held(place):
    """The offsets in all files, in the files' order."""
    paths = files_below(place.store)
    return [json.loads(line)["offset"] for path in paths for line in place.store.read(path).decode().split("\n")[:-1]]


def test_files_are_named_by_their_first_record_and_what_comes_again_is_passed_over(place):
    target = opened(place)
    target.write(batch(1, 2, 3))
    target.write(batch(2, 3, 4))
    assert files_below(place.store) == [f"orders/partition=0/orders+0+{n:010d}.json" for n in (1, 4)]
    opened(place, (2, 0)).write(batch(1, 2, 3, 4, 5))
    assert held(place) == [1, 2, 3, 4, 5]


def test_values_make_folders_and_schemas_files(place):
    opened(place, file_folder_template="${topic}/a=${value.a}").write(batch(1, 2, 3, 4))
    assert sorted(held(place)) == [1, 2, 3, 4]
    assert {path.rpartition("/")[0] for path in files_below(place.store)} == {"orders/a=0", "orders/a=1"}


@pytest.mark.parametrize("at", [0, 1])
def test_what_was_decided_is_finished_and_what_was_not_never_was(place, monkeypatch, at):
    """Two files: the task dies before it has put the first one, or the second one, where readers look."""
    target, puts = opened(place, file_folder_template="${topic}/a=${value.a}"), []

    def dies(one, content):
        puts.append(one)
        if len(puts) > at:
            raise KeyboardInterrupt
        FilesTarget._publish(target, one, content)

    monkeypatch.setattr(target, "_publish", dies)
    with pytest.raises(KeyboardInterrupt):
        target.write(batch(1, 2, 3))
    assert len(files_below(place.store)) == at
    # Kafka's offsets are where they were, and the next batch is another one.
    opened(place, (2, 0), file_folder_template="${topic}/a=${value.a}").write(batch(1, 2, 3, 4))
    assert sorted(held(place)) == [1, 2, 3, 4]
    assert place.store.names("_cdcworker/sink/id-0", "") == []


def test_a_former_owner_decides_nothing(place):
    old, new = opened(place, (1, 0)), opened(place, (2, 0))
    old.write(batch(1))
    new.write(batch(1, 2))
    with pytest.raises(CdcError) as error:
        old.write(batch(2, 3))
    assert error.value.code == "sink.fenced"
    with pytest.raises(CdcError) as error:
        opened(place, (1, 5)).write(batch(2, 3))
    assert error.value.code == "sink.fenced"
    assert held(place) == [1, 2]


def test_a_topic_that_is_made_again_has_files_of_its_own(place):
    opened(place).write(batch(1))
    opened(place).write(batch(1, topic="other"))
    assert held(place) == [1, 1]


def test_a_record_that_was_refused_is_refused_again(place):
    target = opened(place)
    with pytest.raises(CdcError):
        target.write(batch(1, value=lambda _: {"a": "\ud800"}))
    target.write(batch(2))
    again = opened(place, (2, 0))
    with pytest.raises(CdcError) as error:
        again.write(batch(1, 2))
    assert error.value.kind == "data"
    again.write(batch(2, 3))
    assert held(place) == [2, 3]


def test_a_disk_that_is_full_behind_the_decision_loses_nothing(place, monkeypatch):
    target = opened(place)
    with monkeypatch.context() as patch:
        patch.setattr(target, "_publish", away)
        with pytest.raises(CdcError) as error:
            target.write(batch(1, 2))
        assert error.value.kind == "transient"
    target.write(batch(1, 2))
    target.write(batch(3))
    assert held(place) == [1, 2, 3]


def test_a_record_that_was_refused_in_a_batch_that_was_written_again_is_refused_by_the_next_owner_too(
    place, monkeypatch
):
    """Its dead letter is not committed when the owner dies."""
    target = opened(place)
    with pytest.raises(CdcError):
        target.write(batch(1, value=lambda _: {"a": "\ud800"}))
    with monkeypatch.context() as patch:
        patch.setattr(target, "_publish", away)
        with pytest.raises(CdcError) as error:
            target.write(batch(2))
        assert error.value.kind == "transient"
    target.write(batch(2))
    with pytest.raises(CdcError) as error:
        opened(place, (2, 0)).write(batch(1, 2))
    assert error.value.code == "sink.record_refused"
    assert held(place) == [2]


def test_a_value_that_is_too_long_for_a_folder_is_refused_and_a_topic_halts_the_task(tmp_path):
    place = InFolder(tmp_path / "files")
    target = opened(place, file_folder_template="a=${value.a}")
    with pytest.raises(CdcError) as error:
        target.write(batch(1, value=lambda _: {"a": "x" * 300}))
    assert error.value.code == "sink.record_refused"
    named = [replace(record, topic="t" * 249) for record in batch(2, value=lambda _: {"a": "x"}).records]
    with pytest.raises(CdcError) as error:
        target.write(RecordBatch(named))
    assert error.value.code == "sink.target_refuses"
    target.write(batch(3))
    assert held(place) == [3]


def test_a_file_of_somebody_elses_is_left_alone(place):
    place.store.make_folder("orders/partition=0")
    place.store.create("orders/partition=0/orders+0+0000000001.json", b"")
    opened(place).write(batch(1))
    assert held(place) == [1]
    assert len(files_below(place.store)) == 2


@pytest.mark.parametrize("what", ["lost", "cut", "busy"])
@pytest.mark.parametrize("name", ["orders%2B0", "id-0.json", "_cdcworker/sink/id-0/"])
def test_lost_answers_double_and_lose_nothing(bucket, proxy, what, name):
    target = opened(bucket)
    target.write(batch(1))
    fault = proxy.plan(what, put_of(name), 2)
    target.write(batch(2, 3))
    assert len(fault.seen) == 2
    assert held(bucket) == [1, 2, 3]


def test_a_late_decision_of_the_same_owner_changes_nothing(bucket, proxy, impatient):
    target = opened(bucket)
    target.write(batch(1))
    fault = proxy.plan("held", put_of("id-0.json"))
    with pytest.raises(CdcError):
        target.write(batch(2, 3))
    # The engine writes the batch again, in other pieces.
    with contextlib.suppress(CdcError):
        target.write(batch(2, value=lambda _: {"a": "\ud800"}))
    fault.release.set()
    assert fault.done.wait(20)
    target.write(batch(3))
    opened(bucket, (2, 0)).write(batch(4))
    assert held(bucket) == [1, 3, 4]


@pytest.mark.parametrize("name", ["orders%2B0", "id-0.json"])
def test_a_put_that_arrives_after_the_next_owner_has_begun_changes_nothing(bucket, proxy, impatient, name):
    target = opened(bucket)
    target.write(batch(1))
    fault = proxy.plan("held", put_of(name))
    with pytest.raises(CdcError) as error:
        target.write(batch(2, 3))
    assert error.value.kind == "transient"
    new = opened(bucket, (2, 0))
    new.write(batch(2))
    new.write(batch(3, 4))
    fault.release.set()
    assert fault.done.wait(20)
    new.write(batch(5))
    assert sorted(held(bucket)) == [1, 2, 3, 4, 5]


def test_a_reader_never_sees_a_part_of_a_file(place):
    target, ended, seen = opened(place), threading.Event(), set()

    def look():
        while not ended.is_set():
            for path in files_below(place.store):
                seen.add((path, len(place.store.read(path))))

    thread = threading.Thread(target=look)
    thread.start()
    for first in range(0, 60, 3):
        target.write(batch(first, first + 1, first + 2, value=lambda _: {"a": "x" * 20_000}))
    ended.set()
    thread.join()
    assert len({path for path, _ in seen}) == len(seen)


def test_the_doctor_says_what_is_wrong_with_a_bucket(bucket):
    assert opened(bucket).check() == []
    wrong = type("Place", (), {"config": bucket.config | {"warehouse.s3.secret.key": "wrong"}, "roots": ()})
    (finding,) = opened(wrong).check()
    assert (finding.key, finding.severity) == ("warehouse.s3.access.key", "error")
