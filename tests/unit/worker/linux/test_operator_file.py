"""A file of the operator is read again when it changes, and until it can be used."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.alerts.settings import BAD_FILE
from cdcworker.worker.linux.operator_file import LOOK_EVERY_S, OperatorFile, read_bytes, read_yaml

BYTES_MAX = 100


def read(path: Path) -> str:
    return read_bytes(path, BAD_FILE, BYTES_MAX).decode()


class Clock:
    now = 0.0

    def __call__(self) -> float:
        self.now += LOOK_EVERY_S
        return self.now


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "file"
    replace(path, "one")
    return path


def replace(path: Path, text: str, mode: int = 0o600) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    new.chmod(mode)
    os.replace(new, path)


def test_a_file_that_has_become_usable_is_read_although_its_text_is_the_same(path, caplog):
    caplog.set_level(logging.ERROR)
    file = OperatorFile(path, read, "things", Clock())
    replace(path, "two", 0o660)
    assert [file.content() for _ in range(3)] == ["one"] * 3
    assert len(caplog.records) == 1
    path.chmod(0o600)
    assert (file.content(), file.version) == ("two", 1)
    path.unlink()
    assert [file.content() for _ in range(3)] == ["two"] * 3
    assert len(caplog.records) == 2


def test_a_file_that_is_too_large_is_refused_instead_of_read_in_part(path):
    replace(path, "x" * BYTES_MAX)
    assert read(path) == "x" * BYTES_MAX
    replace(path, "x" * (BYTES_MAX + 1))
    with pytest.raises(CdcError, match="larger than 100 bytes"):
        read(path)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: 1\nb: [{c: 1,\n c: 2}]\n", "line 2: a member is named twice"),
        ("a: 1\nb: 2\na: 3\n", "line 1: a member is named twice"),
        ("a: " + "[" * 3_000, "nested too deeply"),
    ],
)
def test_yaml_that_means_less_than_it_says_is_refused(tmp_path, text, told):
    path = tmp_path / "file.yaml"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(CdcError) as caught:
        read_yaml(path, lambda content: content, BAD_FILE, 1 << 20)
    assert caught.value.message == told


def test_yaml_may_be_read_as_texts(tmp_path):
    path = tmp_path / "file.yaml"
    path.write_text("a: &a {b: 007, c: on}\nd: {<<: *a, e: 12:30:45, f: ~, g: '~', h: [1_000]}\n")
    path.chmod(0o600)
    found = read_yaml(path, lambda content: content, BAD_FILE, 1 << 20, texts=True)
    assert found["d"] == {"b": "007", "c": "on", "e": "12:30:45", "f": None, "g": "~", "h": ["1_000"]}
    assert read_yaml(path, lambda content: content, BAD_FILE, 1 << 20)["d"]["b"] == 7
