"""The embedded stack's own logic: what is chosen, what is trusted, what dies with us."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.devstack import mariadb
from cdcworker.worker.devstack.ports import accepts, free_ports, is_free
from cdcworker.worker.devstack.postgres import find_programs
from cdcworker.worker.devstack.process import Program, log_tail
from cdcworker.worker.devstack.scratch import scratch_folder, sweep
from cdcworker.worker.devstack.stack import worker_environment, write_endpoints


def gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


def test_the_named_folder_is_the_only_place_for_postgres_programs(tmp_path):
    with pytest.raises(CdcError, match="postgres_missing"):
        find_programs({"CDC_PG_BIN": str(tmp_path), "PATH": "/usr/bin"})
    for name in ("postgres", "initdb"):
        (tmp_path / name).touch(mode=0o755)
    assert find_programs({"CDC_PG_BIN": str(tmp_path)}) == tmp_path


def test_the_mariadb_of_the_stack_is_the_one_that_the_tests_lock():
    locked = json.loads((Path(__file__).parents[4] / "locks" / "servers.json").read_text())
    entry = locked[mariadb.NAME][mariadb.MACHINE]
    assert (entry["jar"], entry["sha256"]) == (str(mariadb.ARCHIVE), mariadb.ARCHIVE.sha256)


def test_programs_of_mariadb_are_whole_or_not_there(tmp_path):
    archive = tmp_path / "db.jar"
    with zipfile.ZipFile(archive, "w") as made:
        for name in ("bin/mariadbd", "scripts/mariadb-install-db"):
            made.writestr(f"some/where/linux/{name}", "#!/bin/sh\n")
    mariadb.unpack(archive, tmp_path / "servers" / "m")
    assert os.access(tmp_path / "servers" / "m" / "bin" / "mariadbd", os.X_OK)
    assert [path.name for path in (tmp_path / "servers").iterdir()] == ["m"]
    archive.write_bytes(b"broken")
    with pytest.raises(zipfile.BadZipFile):
        mariadb.unpack(archive, tmp_path / "servers" / "other")
    assert [path.name for path in (tmp_path / "servers").iterdir()] == ["m"]


def test_ports_are_distinct_and_free():
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert all(is_free(port) for port in ports)
    assert not accepts(ports[0])


def test_a_child_dies_when_its_parent_is_killed(tmp_path, until):
    code = (
        "import sys, time; from pathlib import Path; from cdcworker.worker.devstack.process import Program\n"
        f"child = Program('sleeper', ['sleep', '60'], Path({str(tmp_path)!r}) / 'log')\n"
        "print(child.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert not gone(pid)
        until(lambda: Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sleep"))
        parent.kill()
    until(lambda: gone(pid))


def test_a_child_that_ignores_the_request_is_killed_at_the_deadline(tmp_path):
    child = Program("stubborn", ["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done"], tmp_path / "log")
    child.wait_until(lambda: "ready" in log_tail(tmp_path / "log"), 10)
    assert child.stop(timeout_s=0.2) == -signal.SIGKILL
    assert not child.alive()
    assert child.stop() == -signal.SIGKILL


def test_a_child_that_ends_early_says_why_with_its_last_lines(tmp_path):
    child = Program("broken", ["sh", "-c", "echo no such thing; exit 3"], tmp_path / "log")
    with pytest.raises(CdcError) as caught:
        child.wait_until(lambda: False, 10)
    assert caught.value.message == "broken ended with exit code 3:\nno such thing"


def test_scratch_is_removed_with_everything_in_it(tmp_path):
    with scratch_folder(tmp_path / "data") as folder:
        (folder / "file").write_text("x")
    assert not folder.exists()


def test_a_folder_with_content_is_not_used_as_scratch(tmp_path):
    (tmp_path / "mine").write_text("x")
    with pytest.raises(CdcError, match="folder_used"), scratch_folder(tmp_path):
        pass
    assert (tmp_path / "mine").exists()


def test_only_scratch_whose_owner_is_gone_is_swept(tmp_path):
    (tmp_path / "x-old").mkdir()
    (tmp_path / "x-old" / ".owner").touch()
    (tmp_path / "x-foreign").mkdir()
    with scratch_folder(tmp_path / "x-live"):
        sweep(tmp_path, "x-")
        assert {path.name for path in tmp_path.iterdir()} == {"x-live", "x-foreign"}


def test_endpoints_are_written_whole_and_for_us_alone(tmp_path):
    path = tmp_path / "endpoints.json"
    write_endpoints(path, {"workers": ["http://127.0.0.1:1"]})
    assert json.loads(path.read_text()) == {"workers": ["http://127.0.0.1:1"]}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [one.name for one in tmp_path.iterdir()] == ["endpoints.json"]


def test_workers_do_not_inherit_settings_meant_for_others(monkeypatch):
    monkeypatch.setenv("CDC_GROUP_ID", "production")
    monkeypatch.setenv("CONNECT_GROUP_ID", "production")
    monkeypatch.setenv("CDC_CACHE_DIR", "/c")
    environment = worker_environment({"SHOP_PASSWORD": "s"})
    assert "CDC_GROUP_ID" not in environment
    assert "CONNECT_GROUP_ID" not in environment
    assert (environment["CDC_CACHE_DIR"], environment["SHOP_PASSWORD"]) == ("/c", "s")
    assert environment["PATH"] == os.environ["PATH"]
