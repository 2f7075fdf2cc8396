"""`cdcworker connection`, and connections in the files of a set, against the application in memory."""

from __future__ import annotations

import json

import httpx
import pytest
from cdcworker.worker.cli.main import cli
from click.testing import CliRunner

from tests.unit.worker.conftest import SECRET

URL = "http://leader:8083"
CONFIG = {"connector.class": "fake", "host": "db1", "password": SECRET}
USES = {"connector.class": "fake", "connection": "pg"}


@pytest.fixture
def run(client, monkeypatch):
    def request(method, url, **options):
        options.pop("timeout")
        options.pop("trust_env")
        return client(method, url.removeprefix(URL), **options)

    monkeypatch.setattr(httpx, "request", request)
    monkeypatch.setenv("CDC_URL", URL)
    return lambda *arguments: CliRunner().invoke(cli, list(map(str, arguments)))


@pytest.fixture
def write(tmp_path):
    folder = tmp_path / "set"
    folder.mkdir()

    def one(file, content):
        (folder / f"{file}.json").write_text(json.dumps(content))
        return folder

    return one


def result(answer):
    return json.loads(answer.stdout)["result"]


def test_a_connection_is_set_shown_changed_and_deleted(run, tmp_path, cluster):
    file = tmp_path / "pg.json"
    file.write_text(json.dumps(CONFIG))
    assert run("connection", "set", "pg", file).stdout == "pg has version 1\n"
    assert "pg    fake" in run("connection", "list").stdout
    changed = run("connection", "set", "pg", "--set", "host=db2", "--unset", "port")
    assert changed.stdout == "pg has version 2\n"
    assert cluster.state.connections["pg"].config == {**CONFIG, "host": "db2"}
    shown = run("connection", "get", "pg")
    assert "db2" in shown.stdout
    assert SECRET not in shown.stdout
    assert run("connection", "delete", "pg").exit_code == 0
    assert cluster.state.connections == {}


def test_a_connection_that_another_creates_in_the_meantime_is_not_overwritten(
    run, write, tmp_path, cluster, monkeypatch
):
    folder = write("pg", {"connection": "pg", "config": CONFIG})
    real = httpx.request

    def late(method, url, **options):
        if method == "PUT" and "dry_run" not in url and "pg" not in cluster.state.connections:
            cluster.connect("pg", {**CONFIG, "host": "theirs"})
        return real(method, url, **options)

    monkeypatch.setattr(httpx, "request", late)
    assert run("connection", "set", "pg", folder / "pg.json", "--set", "host=mine").exit_code != 0
    assert cluster.state.connections["pg"].config["host"] == "theirs"
    cluster.state.connections.clear()
    assert run("apply", folder, "--yes").exit_code != 0
    assert cluster.state.connections["pg"].config["host"] == "theirs"


def test_a_dry_run_tells_which_tasks_start_again(run, cluster):
    cluster.connect("pg", CONFIG)
    cluster.add("c", USES)
    answer = run("connection", "set", "pg", "--set", "password=other", "--dry-run")
    assert answer.stdout.splitlines() == [
        "would be changed: pg",
        "  password: **** -> ****",
        "  starts again: the tasks of c",
    ]
    assert cluster.state.connections["pg"].version == 1
    refused = run("connection", "delete", "pg", "--dry-run")
    assert refused.exit_code != 0
    assert "used by c" in refused.output


def test_a_set_brings_its_connections_before_the_connectors_that_name_them(run, write, cluster):
    write("pg", {"connection": "pg", "config": CONFIG})
    folder = write("c", {"name": "c", "config": USES})
    plan = run("plan", folder)
    assert plan.exit_code == 0, plan.output
    assert plan.stdout.splitlines()[0] == "+ connection pg: created"
    assert "+ c (source): created" in plan.stdout
    assert SECRET not in plan.output
    assert cluster.state.connections == {}
    applied = run("apply", folder, "--yes")
    assert applied.stdout.splitlines() == ["created pg", "created c", "2 done, 0 failed, 0 left out"]
    assert cluster.state.connectors["c"].config == {"name": "c", **USES}
    assert run("plan", folder, "--exit-code").exit_code == 0


def test_a_changed_connection_of_a_set_says_whose_tasks_start_again(run, write, cluster):
    write("c", {"name": "c", "config": USES})
    folder = write("pg", {"connection": "pg", "config": CONFIG})
    run("apply", folder, "--yes")
    write("pg", {"connection": "pg", "config": {**CONFIG, "password": "other"}})
    answer = result(run("plan", folder, "--json"))
    (planned,) = answer["connections"]
    assert (planned["effect"], planned["restarts"]) == ("changed", ["c"])
    assert [one["effect"] for one in answer["connectors"]] == ["unchanged"]
    assert "other" not in json.dumps(answer)


def test_a_connector_of_a_set_that_would_not_hold_with_its_connection_is_refused(run, write, cluster):
    without = {name: value for name, value in CONFIG.items() if name != "host"}
    write("pg", {"connection": "pg", "config": without})
    folder = write("c", {"name": "c", "config": USES})
    answer = run("apply", folder, "--yes")
    assert answer.exit_code == 2
    assert "host" in answer.output
    assert cluster.state.connections == {}


def test_a_kept_plan_is_stale_when_a_connection_has_changed_since(run, write, tmp_path, cluster):
    folder = write("pg", {"connection": "pg", "config": CONFIG})
    kept = tmp_path / "plan.json"
    assert run("plan", folder, "--out", kept).exit_code == 0
    assert SECRET not in kept.read_text()
    cluster.connect("pg", {**CONFIG, "host": "db9"})
    answer = run("apply", folder, "--plan", kept)
    assert "cli.plan_stale" in answer.output
    assert cluster.state.connections["pg"].config["host"] == "db9"


def test_what_is_exported_can_be_applied_again(run, write, tmp_path, cluster):
    cluster.connect("pg", CONFIG)
    cluster.add("c", {"name": "c", **USES})
    out = tmp_path / "out"
    answer = run("export", out)
    assert answer.stdout.splitlines()[-1] == f"1 connectors and 1 connection in {out}"
    assert SECRET not in (out / "connections" / "pg.json").read_text()
    assert run("plan", out, "--exit-code").exit_code == 0, run("plan", out).output


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"connection": "", "config": {}}, "`connection` is empty"),
        ({"connection": "pg", "config": {}, "labels": {}}, "unknown member 'labels'"),
        ({"connection": "pg", "config": {"tasks.max": "1", "connector.class": "fake"}}, "no key of a connection"),
    ],
)
def test_what_is_no_connection_is_refused(run, write, content, said):
    answer = run("plan", write("pg", content))
    assert answer.exit_code == 2
    assert said in answer.output
