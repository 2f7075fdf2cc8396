"""The file connectors: lines in by offset, lines out once, whoever dies or wakes in between."""

from __future__ import annotations

import contextlib
import json
import os
import time
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
from cdcworker.connectors.api.context import TaskContext
from cdcworker.connectors.config.allowed_paths import allowed_path
from cdcworker.connectors.file import sink
from cdcworker.connectors.file import target as file_target
from cdcworker.connectors.file.lines import JSON, STRING, line_decoder, line_encoder
from cdcworker.connectors.file.sink import CONFIG_DEF as SINK_DEF
from cdcworker.connectors.file.sink import FileSink, FileSinkTask
from cdcworker.connectors.file.source import CONFIG_DEF as SOURCE_DEF
from cdcworker.connectors.file.source import LINE_BYTES_MAX, FileSource, FileSourceTask
from cdcworker.connectors.file.target import FileTarget
from cdcworker.connectors.registry.names import lookup
from cdcworker.connectors.sink_engine.kafka.lag import SinkLag
from cdcworker.schemas.errors import CdcError

TOPIC = ("t", 0)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "a.txt"


def code_of(call, *args) -> str:
    with pytest.raises(CdcError) as caught:
        call(*args)
    return caught.value.code


# --- source ----------------------------------------------------------------------------------------------------------


def source(file: Path, position=None, **config: str) -> FileSourceTask:
    share = {"name": "f", "connector.class": "file", "file": str(file), "topic": "t"}
    share |= {name.replace("_", "."): text for name, text in config.items()}
    context = TaskContext("f", 0, 1, "i", "", file_roots=(str(file.parent),))
    task = FileSourceTask(SOURCE_DEF.parse(FileSource(share).split(3)[0]), context, lambda _s: None)
    task.open(position)
    return task


def drain(task: FileSourceTask, position=None) -> tuple[list[bytes], dict | None]:
    """The lines until the file has no more, and the last position."""
    lines: list[bytes] = []
    while True:
        batch = task.poll()
        lines += [record.value for record in batch.records]
        position = batch.position or position
        if batch.idle and not batch.records:
            return lines, position


def test_lines_are_read_once_over_restarts_at_any_batch(file):
    wanted = [f"line {n} " + "x" * (n % 50) for n in range(1000)]
    file.write_text("".join(f"{line}\n" for line in wanted))
    found, position = [], None
    for _ in range(200):
        task = source(file, position, batch_size="7")
        batch = task.poll()
        found += [record.value.decode() for record in batch.records]
        position = batch.position or position
        task.close()
    assert found == wanted
    assert position["position"] == file.stat().st_size


def test_a_file_may_appear_later_and_grow_and_a_line_without_an_end_waits(file):
    task = source(file)
    assert task.poll().idle
    file.write_bytes(b"one\r\ntw")
    lines, position = drain(task)
    assert lines == [b"one"]
    with file.open("ab") as more:
        more.write(b"o\n\nfour")
    assert drain(task, position)[0] == [b"two", b""]
    task.close()


def test_records_go_to_the_named_topic_without_a_key(file):
    file.write_bytes(b"a\n")
    (record,) = source(file).poll().records
    assert record == ("t", None, b"a", None, None)


def test_a_file_that_was_cut_halts(file):
    file.write_bytes(b"one\ntwo\n")
    task = source(file)
    _, position = drain(task)
    file.write_bytes(b"one\n")
    task._looked = 0.0
    assert code_of(task.poll) == "file.source_changed"
    assert code_of(source, file, position) == "file.source_changed"


def test_other_bytes_before_the_position_halt(file):
    file.write_bytes(b"one\ntwo\n")
    _, position = drain(source(file))
    file.write_bytes(b"one\nTWO\nthree\n")
    assert code_of(source, file, position) == "file.source_changed"


def test_a_file_that_was_replaced_by_a_longer_one_with_the_same_beginning_goes_on(file):
    file.write_bytes(b"one\n")
    task = source(file)
    drain(task)
    other = file.with_name("other")
    other.write_bytes(b"one\ntwo\n")
    other.rename(file)
    task._looked = 0.0
    assert drain(task)[0] == [b"two"]
    file.unlink()
    task._looked = 0.0
    assert task.poll().idle


def test_a_line_that_does_not_end_is_an_error_and_not_a_full_memory(file):
    file.write_bytes(b"x" * (LINE_BYTES_MAX + 1) * 2)
    task = source(file)

    def read() -> None:
        for _ in range(100):
            task.poll()

    assert code_of(read) == "file.line_too_long"
    assert len(task._ahead) < 2 * LINE_BYTES_MAX


@pytest.mark.parametrize(
    ("converter", "value"),
    [
        ({}, b"caf\xc3\xa9"),
        ({"value_converter": JSON, "value_converter_schemas_enable": "false"}, '"café"'.encode()),
        (
            {"value_converter": JSON},
            '{"schema":{"type":"string","optional":false},"payload":"café"}'.encode(),
        ),
    ],
)
def test_values_have_connects_forms_and_come_back_as_lines(file, converter, value):
    file.write_text("café\n")
    assert drain(source(file, **converter))[0] == [value]
    name = converter.get("value_converter", STRING)
    schemas = converter.get("value_converter_schemas_enable") != "false"
    assert line_decoder(name, schemas=schemas)(value) == "café".encode()


def test_a_line_that_is_no_text_is_a_data_error_with_its_offset(file):
    file.write_bytes(b"ok\n\xff\xfe\n")
    task = source(file, value_converter=JSON)
    with pytest.raises(CdcError) as caught:
        task.poll()
    assert (caught.value.kind, caught.value.where["offset"]) == ("data", 3)
    assert line_encoder(STRING, schemas=True)(b"\xff") == b"\xff"


def test_positions_are_stored_under_connects_partition(file):
    assert FileSource({"file": "/a/b"}).partition(0) == {"filename": "/a/b"}


@pytest.mark.parametrize("position", [{}, {"position": -1}, {"position": "3"}, {"v": 9, "position": 1}])
def test_a_position_of_something_else_halts(file, position):
    assert code_of(source, file, position) == "file.position_invalid"


def test_a_position_of_kafka_connect_is_taken(file):
    file.write_bytes(b"one\ntwo\n")
    assert drain(source(file, {"position": 4}))[0] == [b"two"]


# --- paths -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["{root}/../x", "{root}/a/../../x", "/etc/passwd", "{root}/..", "{root}/out/passwd", "{root}2/x"]
)
def test_files_outside_of_the_allowed_folders_are_refused(tmp_path, path):
    root = tmp_path / "root"
    (root / "a").mkdir(parents=True)
    (root / "out").symlink_to("/etc")
    assert code_of(allowed_path, path.format(root=root), (str(root),)) == "file.path_not_allowed"
    assert code_of(allowed_path, str(root / "x"), ()) == "file.path_not_allowed"
    assert allowed_path(f"{root}/a/../b", (str(root),)) == root / "b"


def test_a_link_or_a_folder_is_not_followed(tmp_path):
    (tmp_path / "link").symlink_to("/etc/hostname")
    (tmp_path / "folder").mkdir()
    for name in ("link", "folder"):
        assert code_of(source, tmp_path / name) == "file.no_access"
        assert code_of(opened, tmp_path / name) == "file.no_access"


@pytest.mark.parametrize(
    ("definition", "config", "key"),
    [
        (SOURCE_DEF, {"file": "a.txt", "topic": "t"}, "file"),
        (SOURCE_DEF, {"file": "/a", "topic": "a b"}, "topic"),
        (SOURCE_DEF, {"file": "/a", "topic": "t", "value.converter": "Avro"}, "value.converter"),
        (SOURCE_DEF, {"topic": "t"}, "file"),
        (SINK_DEF, {"file": "/a"}, "topics topics.regex"),
        (SINK_DEF, {"file": "/a", "topics": "t", "topics.regex": "t"}, "topics topics.regex"),
    ],
)
def test_a_wrong_config_is_refused_at_its_key(definition, config, key):
    assert [value.name for value in definition.validate(config) if value.errors] == key.split()


def test_connects_own_examples_are_valid():
    source_example = {
        "name": "local-file-source",
        "connector.class": "FileStreamSource",
        "tasks.max": "1",
        "file": "/tmp/cdcworker/test.txt",
        "topic": "connect-test",
    }
    sink_example = {**source_example, "connector.class": "FileStreamSink", "topics": "connect-test"}
    del sink_example["topic"]
    for example in (source_example, sink_example):
        for name in (
            example["connector.class"],
            f"org.apache.kafka.connect.file.{example['connector.class']}Connector",
        ):
            found = lookup(name).load().config_def.validate(example)
            assert not [value.errors for value in found if value.errors]


# --- target ----------------------------------------------------------------------------------------------------------


def opened(path: Path, epoch: tuple[int, int] = (1, 0), owner: str = "s") -> FileTarget:
    target = FileTarget(path, owner, epoch)
    target.open()
    return target


def test_what_was_appended_is_there_and_the_next_owner_goes_on(file):
    first = opened(file)
    first.append(b"1\n2\n", {TOPIC: 2})
    first.close()
    second = opened(file, (1, 1))
    assert second.offsets == {TOPIC: 2}
    second.append(b"3\n", {TOPIC: 3})
    assert file.read_bytes() == b"1\n2\n3\n"
    assert len(list(file.parent.glob(".a.txt.ledger-*"))) == 1


def test_what_was_not_committed_is_cut_off(file):
    first = opened(file)
    first.append(b"1\n", {TOPIC: 1})
    first.close()
    with file.open("ab") as more:
        more.write(b"2\nhalf a li")
    second = opened(file, (2, 0))
    assert file.read_bytes() == b"1\n"
    assert second.offsets == {TOPIC: 1}


class Crash(BaseException):
    """The process dies here."""


class Steps:
    """Dies at the n-th call of the functions that it wraps; a write is then half done."""

    def __init__(self, patch, last: int) -> None:
        self.calls, self._last = 0, last
        for name in ("pwrite", "fsync", "ftruncate", "rename"):
            patch.setattr(os, name, self._wrapped(name, getattr(os, name)))

    def _wrapped(self, name: str, original):
        def call(*args):
            self.calls += 1
            if self.calls != self._last:
                return original(*args)
            if name == "pwrite":
                original(args[0], bytes(args[1])[: len(args[1]) // 2], args[2])
            raise Crash

        return call


def test_a_death_at_any_step_leaves_nothing_twice_and_nothing_out(file, monkeypatch):
    for step in range(1, 60):
        path, written = file.with_name(f"{step}.txt"), 0
        target = FileTarget(path, "s", (1, 0))
        with monkeypatch.context() as patch:
            steps = Steps(patch, step)
            with contextlib.suppress(Crash):
                target.open()
                for n in range(5):
                    target.append(f"{n}\n".encode(), {TOPIC: n + 1})
                    written = n + 1
            target.close()
        second = opened(path, (1, 1))
        start = second.offsets.get(TOPIC, 0)
        assert start in (written, written + 1)
        for n in range(start, 5):
            second.append(f"{n}\n".encode(), {TOPIC: n + 1})
        second.close()
        assert path.read_bytes() == b"0\n1\n2\n3\n4\n"
        if steps.calls < step:
            assert step > 15
            return
    raise AssertionError("there are more steps than were tried")


def test_lines_are_durable_before_the_ledger_says_so(file, monkeypatch):
    target, calls = opened(file), []
    for name in ("pwrite", "fsync", "rename"):
        original = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *args, n=name, o=original: (calls.append(n), o(*args))[1])
    target.append(b"1\n", {TOPIC: 1})
    assert calls == ["pwrite", "fsync", "fsync", "rename", "fsync"]


def test_an_owner_that_was_taken_over_writes_nothing_more(file, monkeypatch):
    monkeypatch.setattr(file_target, "LOCK_WAIT_S", 0.05)
    zombie = opened(file)
    zombie.append(b"1\n", {TOPIC: 1})
    owner = opened(file, (2, 0))
    owner.append(b"2\n", {TOPIC: 2})
    assert code_of(zombie.append, b"2\n", {TOPIC: 2}) == "file.fenced"
    owner.append(b"3\n", {TOPIC: 3})
    zombie.close()
    assert file.read_bytes() == b"1\n2\n3\n"
    assert code_of(opened, file, (1, 9)) == "file.fenced"


def test_a_zombie_that_wakes_between_its_look_and_its_write_does_no_harm(file, monkeypatch):
    monkeypatch.setattr(file_target, "LOCK_WAIT_S", 0.05)
    zombie = opened(file)
    zombie.append(b"1\n", {TOPIC: 1})
    look = zombie._require_ownership
    owners: list[FileTarget] = []

    def overtaken() -> None:
        look()
        owners.append(opened(file, (2, 0)))
        owners[0].append(b"2\n", {TOPIC: 2})

    monkeypatch.setattr(zombie, "_require_ownership", overtaken)
    zombie.append(b"Z\nX\n", {TOPIC: 3})
    owners[0].append(b"3\n", {TOPIC: 3})
    assert file.read_bytes() == b"1\n2\n3\n"
    owners[0].close()
    zombie.close()
    assert opened(file, (3, 0)).offsets == {TOPIC: 3}
    assert file.read_bytes() == b"1\n2\n3\n"


def test_a_copy_that_a_zombie_puts_over_the_file_is_undone(file, monkeypatch):
    monkeypatch.setattr(file_target, "LOCK_WAIT_S", 0.05)
    first = opened(file)
    first.append(b"1\n", {TOPIC: 1})
    late = FileTarget(file, "s", (2, 0))
    copy, owners = late._replace, []

    def overtaken(source: int) -> None:
        first.close()
        owners.append(opened(file, (3, 0)))
        owners[0].append(b"2\n", {TOPIC: 2})
        copy(source)

    monkeypatch.setattr(late, "_replace", overtaken)
    late.open()
    assert file.read_bytes() == b"1\n"
    owners[0].append(b"3\n", {TOPIC: 3})
    assert file.read_bytes() == b"1\n2\n3\n"
    assert code_of(late.append, b"X\n", {TOPIC: 9}) == "file.fenced"


def test_a_file_that_was_there_before_is_kept(file):
    file.write_bytes(b"mine\n")
    target = opened(file)
    target.append(b"1\n", {TOPIC: 1})
    assert file.read_bytes() == b"mine\n1\n"


def test_a_file_that_lost_lines_halts(file):
    target = opened(file)
    target.append(b"1\n2\n", {TOPIC: 2})
    target.close()
    file.write_bytes(b"1\n")
    assert code_of(opened, file, (2, 0)) == "file.target_changed"
    file.unlink()
    assert code_of(opened, file, (2, 0)) == "file.target_changed"


def test_another_sink_of_the_same_file_is_refused(file):
    target = opened(file)
    target.append(b"1\n", {TOPIC: 1})
    target.close()
    assert code_of(opened, file, (2, 0), "other") == "file.taken"
    assert code_of(opened, file, (0, 0), "other") == "file.taken"  # however old its epoch is


def test_a_broken_ledger_halts(file):
    opened(file).close()
    next(file.parent.glob(".a.txt.ledger-*")).write_text("{")
    assert code_of(opened, file, (2, 0)) == "file.ledger_unreadable"


def test_a_failed_write_is_tried_again_later(file, monkeypatch):
    target = opened(file)

    def full(*_args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(CdcError) as caught:
            target.append(b"1\n", {TOPIC: 1})
    assert (caught.value.code, caught.value.retriable) == ("file.write_failed", True)


# --- sink ------------------------------------------------------------------------------------------------------------


class Message:
    def __init__(self, offset: int, value: bytes | None) -> None:
        self._offset, self._value = offset, value

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def key(self) -> None:
        return None

    def value(self) -> bytes | None:
        return self._value

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_000 * self._offset

    def __len__(self) -> int:
        return len(self._value or b"")


class Reader:
    partitions: ClassVar = {"t": 1}

    def __init__(self, *batches) -> None:
        self.batches = list(batches)
        self.read_to: dict[tuple[str, int], int] = {}

    def read(self, count: int, timeout_s: float) -> list[Message]:
        batch = self.batches.pop(0) if self.batches else []
        for message in batch:
            self.read_to[TOPIC] = message.offset() + 1
        return batch


def write(file: Path, decode, *batches, end: int | None = None, said: list[dict] | None = None) -> FileTarget:
    reader, target, said = Reader(*batches), opened(file), [] if said is None else said
    context = TaskContext("s", 0, 1, "i", "", stopping=lambda: not reader.batches, report=said.append)
    FileSinkTask(reader, target, decode, SinkLag(lambda _: {} if end is None else ended_at(end)), context).run(10)
    assert said
    return target


def ended_at(offset: int) -> dict[tuple[str, int], Future]:
    future: Future = Future()
    future.set_result(SimpleNamespace(offset=offset))
    return {TOPIC: future}


def test_a_sink_reports_what_waits_and_since_when(file, monkeypatch):
    monkeypatch.setattr(sink, "REPORT_S", 0.0)
    said: list[dict] = []
    write(file, lambda v: v, [Message(4, b"a")], [Message(5, b"b")], [Message(6, b"c")], end=9, said=said)
    last = said[-1]
    assert (last["offsets"], last["topic_lag_records"], last["lag_records"], last["lag_bytes"]) == (
        {"t-0": 7},
        {"t": 2},
        2,
        2,
    )
    assert last["lag_s"] == pytest.approx(time.time() - 6, abs=60)


def test_records_become_lines_and_offsets_the_ones_after_them(file):
    target = write(file, lambda v: v, [Message(4, b"a"), Message(7, None)], [Message(8, b"b")])
    assert file.read_bytes() == b"a\nnull\nb\n"
    assert target.offsets == {TOPIC: 9}


def test_a_value_that_does_not_convert_is_a_data_error_with_its_offset_and_writes_nothing(file):
    decode = line_decoder(JSON, schemas=True)
    with pytest.raises(CdcError) as caught:
        write(file, decode, [Message(0, json.dumps({"payload": "fine"}).encode()), Message(1, b"secret value")])
    assert (caught.value.kind, caught.value.where) == ("data", {"topic": "t", "partition": 0, "offset": 1})
    assert "secret" not in str(caught.value)
    assert file.read_bytes() == b""


def test_a_sink_is_one_task_over_all_its_topics():
    sink = FileSink({"file": "/a", "topics": "b,a,b"})
    assert [share["topics"] for share in sink.split(5, ())] == ["a,b"]
    found = FileSink({"file": "/a", "topics.regex": ".*"}).split(5, ("x", "__consumer_offsets", "y"))
    assert [share["topics"] for share in found] == ["x,y"]
    assert SINK_DEF.parse({"file": "/a", "topics.regex": ".*", **found[0]})["topics"] == ["x", "y"]
    assert FileSink({"file": "/a", "topics.regex": "q"}).split(5, ()) == []
