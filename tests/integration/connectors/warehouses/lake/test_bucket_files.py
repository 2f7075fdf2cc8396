"""What Spark's Java process may ask about a bucket, and what it gets; on a real server, without Java."""

from __future__ import annotations

import functools
import json
import socket
import uuid

import pytest
from cdcworker.connectors.warehouses.lake.java.bucket_files import BucketFiles

from tests.s3_faults import FaultProxy
from tests.s3_server import BUCKET, HOST, bucket_at

pytestmark = pytest.mark.s3


@pytest.fixture
def prefix():
    return uuid.uuid4().hex


@pytest.fixture
def files(s3, prefix):
    return s3.files(prefix)


@pytest.fixture
def served(files):
    made = BucketFiles()
    made.add(files)
    yield made
    made.close()


def ask(served, prefix, step, path, **more):
    """As Java asks; the answer and what a file holds."""
    return send(served, {"step": step, "bucket": BUCKET, "key": f"{prefix}/{path}".rstrip("/"), **more})


def send(served, question):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(served.path))
        connection.sendall(json.dumps(question).encode())
        connection.shutdown(socket.SHUT_WR)
        said, _, content = b"".join(iter(functools.partial(connection.recv, 65_536), b"")).partition(b"\n")
    return json.loads(said), content


def put(served, prefix, path, content, overwrite=False):
    (served.scratch / "put1").write_bytes(content)
    return ask(served, prefix, "put", path, scratch="put1", overwrite=overwrite)[0]


def test_a_file_is_made_once_and_replaced_where_that_is_said(served, prefix, files):
    assert put(served, prefix, "t/a", b"one") == {}
    assert put(served, prefix, "t/a", b"two") == {"error": "exists"}
    assert files.read("t/a") == b"one"
    assert put(served, prefix, "t/a", b"three", overwrite=True) == {}
    assert files.read("t/a") == b"three"
    assert list(served.scratch.iterdir()) == []


def test_a_file_whose_answer_is_lost_is_made_once(s3, served, prefix, files):
    with FaultProxy(HOST, s3.port) as proxy:
        served.add(bucket_at(proxy.endpoint, prefix))
        fault = proxy.plan("lost", lambda method, _path: method == "PUT")
        assert put(served, prefix, "t/a", b"one") == {}
        assert fault.seen
    assert files.read("t/a") == b"one"


def test_files_and_folders_are_told_and_read_in_parts(served, prefix, files):
    files.replace("t/log/1", b"0123456789")
    files.replace("t/b", b"b")
    assert ask(served, prefix, "status", "")[0] == {"folder": True}
    assert ask(served, prefix, "status", "t/log")[0] == {"folder": True}
    said, _ = ask(served, prefix, "status", "t/log/1")
    assert said["size"] == 10
    listed, _ = ask(served, prefix, "list", "t")
    assert (listed["folders"], [file[:2] for file in listed["files"]]) == (["log"], [["b", 1]])
    assert ask(served, prefix, "list", "t/b")[0]["self"]["size"] == 1
    for step in ("status", "list"):
        assert ask(served, prefix, step, "t/none")[0] == {"error": "missing"}
    assert ask(served, prefix, "read", "t/log/1", first=2, size=3)[1] == b"234"
    assert ask(served, prefix, "read", "t/log/1", first=8, size=100)[1] == b"89"
    assert ask(served, prefix, "read", "t/none", first=0, size=1)[0] == {"error": "missing"}


def test_files_are_renamed_and_removed(served, prefix, files):
    for name in ("a", "b", "f/x", "f/g/y"):
        files.replace(f"t/{name}", name.encode())
    assert ask(served, prefix, "rename", "t/a", target=f"{prefix}/t/c")[0] == {"there": True}
    assert ask(served, prefix, "rename", "t/c", target=f"{prefix}/t/b")[0] == {"there": False}
    assert sorted(files.names("t", "")) == ["b", "c"]
    assert ask(served, prefix, "delete", "t/c", recursive=False)[0] == {"there": True}
    assert ask(served, prefix, "delete", "t/f", recursive=True)[0] == {"there": True}
    assert ask(served, prefix, "delete", "t/f", recursive=True)[0] == {"there": False}
    assert files.entries("t")[0] == []


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"bucket": "another"}, "file.path_not_allowed"),
        ({"key": "elsewhere/x"}, "file.path_not_allowed"),
        ({"key": ""}, "file.path_not_allowed"),
        ({"key": None}, "file.path_not_allowed"),
        ({"step": "open"}, "spark.target_failed"),
    ],
)
def test_what_lies_outside_of_the_warehouse_is_refused(served, prefix, more, code):
    question = {"step": "read", "bucket": BUCKET, "key": f"{prefix}/x", "first": 0, "size": 1}
    said, content = send(served, {**question, **more})
    assert (said, content) == ({"error": "refused", "message": f"[{code}]"}, b"")


def test_a_file_of_this_machine_is_not_put(served, prefix, files, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("s")
    said, _ = ask(served, prefix, "put", "t/a", scratch=f"../../..{secret}", overwrite=False)
    assert said["error"] == "missing"
    assert not files.exists("t/a")
    assert secret.exists()


def test_what_the_store_refuses_has_its_code_and_no_secret(s3, served, prefix):
    served.add(bucket_at(s3.endpoint, prefix, **{"warehouse.s3.secret.key": "wrong"}))
    said, _ = ask(served, prefix, "list", "x")
    assert said == {"error": "refused", "message": "[spark.target_auth]"}
