import json

import httpx
import pytest
from cdcworker.worker.cli.commands.connectors.connector import connector
from click.testing import CliRunner

URL = "http://leader:8083"


@pytest.fixture
def run(client, monkeypatch):
    """The command line against the application in memory."""

    def request(method, url, **options):
        options.pop("timeout")
        options.pop("trust_env")
        return client(method, url.removeprefix(URL), **options)

    monkeypatch.setattr(httpx, "request", request)

    def invoke(*arguments, **options):
        return CliRunner().invoke(connector, ["--url", URL, *arguments], **options)

    return invoke


@pytest.fixture
def file(tmp_path, config):
    path = tmp_path / "c.json"
    path.write_text(json.dumps({"name": "c", "config": config}))
    return str(path)


def test_a_connector_lives_its_life(run, file, cluster, words):
    assert run("create", file).output == "created c\n"
    cluster.plan("c", incarnation="")
    assert run("get", "c").exit_code == 0
    assert run("pause", "c").output == "paused c\n"
    assert run("resume", "c").output == "resumed c\n"
    assert run("restart", "c").output == "restarting c\n"
    assert run("restart", "c", "--failed").exit_code == 0
    assert run("stop", "c").output == "stopped c\n"
    assert run("delete", "c").output == "deleted c\n"
    assert cluster.state.connectors == {}


def test_the_list_is_a_table(run, cluster):
    assert run("list").output == "NAME  TYPE  STATE  TASKS  HEALTH\n"
    cluster.add("shop")
    cluster.plan("shop", "RUNNING", "FAILED")
    assert run("list").output.splitlines()[1] == "shop  source  RUNNING  1/2    degraded"


def test_status_tells_why(run, cluster):
    cluster.add("c")
    cluster.plan("c", "FAILED")
    output = run("status", "c").output
    assert output.startswith("c: failed (1 of 1 task FAILED)\n")
    assert "[postgres.slot_lost] gone (make one)" in output


def test_a_secret_is_never_shown(run, file, words):
    assert words.secret not in run("create", file).output
    assert words.secret not in run("--json", "get", "c").output


def test_the_flat_form_takes_its_name_from_an_option(run, config, cluster):
    assert run("create", "-", "--name", "d", "--set", "port=1", input=json.dumps(config)).exit_code == 0
    assert cluster.state.connectors["d"].config["port"] == "1"


def test_the_initial_state_is_given_on(run, file, cluster):
    assert run("create", file, "--state", "stopped").exit_code == 0
    assert cluster.state.connectors["c"].target_state == "STOPPED"


def test_live_checks_can_be_left_out(run, file, checks):
    assert run("create", file, "--no-live-checks").exit_code == 0
    assert checks.asked == []


@pytest.mark.parametrize("name", ["a/b", "..", "ü;%"])
def test_any_name_can_be_reached(run, cluster, name):
    cluster.add(name)
    assert run("pause", name).exit_code == 0


def test_json_is_one_envelope(run, cluster):
    cluster.add("c")
    good = json.loads(run("--json", "status", "c").output)
    assert (good["command"], good["ok"], good["error"]) == ("connector status", True, None)
    assert good["result"]["name"] == "c"
    bad = run("--json", "status", "nope")
    assert bad.exit_code == 1
    envelope = json.loads(bad.output)
    assert (envelope["ok"], envelope["result"]) == (False, None)
    assert envelope["summary"] == "No status found for connector nope"
    assert envelope["error"]["code"] == "rest.not_found"


def test_a_refused_config_is_exit_code_2(run):
    answer = run("create", "--name", "c", "--set", "connector.class=fake")
    assert answer.exit_code == 2
    assert 'Missing required configuration "host"' in answer.output


def test_a_worker_that_is_not_there_is_exit_code_3(run, monkeypatch):
    def refuse(*_, **__):
        raise httpx.ConnectError("refused")

    monkeypatch.setattr(httpx, "request", refuse)
    assert run("list").exit_code == 3


@pytest.mark.parametrize("text", ["{", "[]", None])
def test_a_file_that_is_no_config_is_a_usage_error(run, tmp_path, text):
    path = tmp_path / "x.json"
    if text is not None:
        path.write_text(text)
    assert run("create", str(path)).exit_code == 2


def test_a_setting_without_a_value_is_a_usage_error(run):
    assert run("create", "--set", "x").exit_code == 2


@pytest.mark.parametrize("begin", ["now", "beginning"])
def test_following_rows_of_a_cluster_that_is_not_there_says_where_to_look(begin):
    from cdcworker.worker.cli.commands.tail import tail

    done = CliRunner().invoke(tail, ["shop", "--url", "http://127.0.0.1:9", "--from", begin])
    assert done.exit_code == 3
    assert "[rest.unreachable] http://127.0.0.1:9" in done.output
    assert "that a worker runs there" in done.output
    assert "cut off" not in done.output, "nothing was ever seen"
