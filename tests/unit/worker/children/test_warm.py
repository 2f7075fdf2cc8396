"""Children that are forked for a question: each answers for itself, within its time, and nothing of it stays."""

import functools
import json
import os
import sys

import pytest
from cdcworker.worker.children.warm import FORK_SERVER, WarmChildren
from cdcworker.worker.validation.validate import CHILD, run_checks

from tests.herders import eventually

FORK_S_MAX = "cdcworker.worker.children.warm.FORK_S_MAX"
MODULE = """
import json, os, subprocess, sys, time
said = []
def preload():
    gate = os.environ.get("WARM_GATE")
    while gate and not os.path.exists(gate):
        time.sleep(0.01)
    said.append("preloaded")
def main():
    question = json.load(sys.stdin)
    said.append(question.get("say"))
    if question.get("die"):
        os._exit(3)
    if question.get("hang"):
        print("partly", flush=True)
        helper = subprocess.Popen(["sleep", "600"])
        open(question["hang"], "w").write(f"{os.getpid()} {helper.pid}")
        time.sleep(600)
    json.dump({"said": said, "env": os.environ.get("WARM_TEST"), "pid": os.getpid(), "size": len(str(question))}, sys.stdout)
    sys.stdout.flush()
    return 0
if __name__ == "__main__":
    sys.exit(main())
"""


@pytest.fixture
def warm(tmp_path, monkeypatch):
    (tmp_path / "asked_module.py").write_text(MODULE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    made = WarmChildren("asked_module")
    yield made
    made.close()


def ask(warm, timeout_s=60.0, **question):
    answer = warm.call(question, timeout_s)
    assert answer.code == 0
    return json.loads(answer.out)


def test_each_question_has_a_child_of_its_own_which_was_preloaded(warm, monkeypatch):
    first, second = ask(warm, say="a"), ask(warm, say="b")
    assert (first["said"], second["said"]) == (["preloaded", "a"], ["preloaded", "b"])
    assert first["pid"] != second["pid"]
    monkeypatch.setenv("WARM_TEST", "new")
    assert ask(warm)["env"] == "new"
    assert ask(warm, say="x" * 2_000_000)["size"] > 2_000_000


def test_a_child_that_dies_says_nothing_and_harms_no_other(warm):
    assert warm.call({"die": True}, 60.0).out == b""
    assert ask(warm, say="b")["said"] == ["preloaded", "b"]


def test_a_child_that_hangs_is_ended_with_what_it_started(warm, tmp_path):
    ask(warm)
    answer = warm.call({"hang": str(tmp_path / "pids")}, 1.0)
    assert (answer.code, answer.out) == (None, b"partly\n")
    pids = list(map(int, (tmp_path / "pids").read_text().split()))
    eventually(lambda: not any(map(is_running, pids)))


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_server_that_still_starts_is_left_to_the_questions_that_follow(warm, tmp_path, monkeypatch):
    gate = tmp_path / "gate"
    monkeypatch.setenv("WARM_GATE", str(gate))
    warm.open()
    server = warm._process.pid
    monkeypatch.setattr(FORK_S_MAX, 0.1)
    assert ask(warm, say="a")["said"] == ["a"]
    gate.write_bytes(b"open")
    monkeypatch.setattr(FORK_S_MAX, 30.0)
    assert ask(warm, say="b")["said"] == ["preloaded", "b"]
    assert warm._process.pid == server


def test_a_server_that_is_not_ready_for_long_is_replaced(warm, tmp_path, monkeypatch):
    gate = tmp_path / "gate"
    monkeypatch.setenv("WARM_GATE", str(gate))
    monkeypatch.setattr("cdcworker.worker.children.warm.START_S_MAX", 0.0)
    monkeypatch.setattr(FORK_S_MAX, 0.1)
    warm.open()
    server = warm._process.pid
    assert ask(warm, say="a")["said"] == ["a"]
    monkeypatch.delenv("WARM_GATE")
    monkeypatch.setattr(FORK_S_MAX, 30.0)
    assert ask(warm, say="b")["said"] == ["preloaded", "b"]
    assert not is_running(server)


def test_a_server_that_was_lost_is_replaced(warm):
    first = ask(warm)
    warm._process.kill()
    warm._process.wait()
    assert ask(warm)["pid"] != first["pid"]


@pytest.mark.parametrize("server", [(sys.executable, "-c", "pass"), (sys.executable, "-c", "import sys; sys.exit(1)")])
def test_without_a_fork_server_the_question_is_asked_all_the_same(tmp_path, monkeypatch, server):
    (tmp_path / "asked_module.py").write_text(MODULE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    warm = WarmChildren("asked_module", server)
    try:
        assert ask(warm, say="a")["said"] == ["a"]
    finally:
        warm.close()


def test_the_children_end_with_the_worker(warm, tmp_path):
    ask(warm)
    server = warm._process.pid
    warm.close()
    assert not is_running(server)
    assert FORK_SERVER[0] == sys.executable


def test_live_checks_are_asked_of_a_warm_child(tmp_path):
    warm = WarmChildren(CHILD)
    try:
        checks = functools.partial(run_checks, providers={"file.connector.paths": str(tmp_path)}, call=warm.call)
        source = {"name": "f", "connector.class": "file", "topic": "t"}
        assert checks({**source, "file": str(tmp_path / "a")}, 60.0) == []
        (found,) = checks({**source, "file": "/etc/hostname"}, 60.0)
        assert (found.key, found.code) == ("file", "file.path_not_allowed")
        assert warm._process is not None
        assert os.getpid() != warm._process.pid
    finally:
        warm.close()
