"""The command line against the application in memory: files applied, compared and validated, the cluster looked at."""

from __future__ import annotations

import json
from dataclasses import replace

import httpx
import pytest
from cdcworker.connectors.api.context import CheckFinding
from cdcworker.connectors.checks import CheckResult, DoctorCheck, ExaminedTarget, Repair
from cdcworker.connectors.postgres.errors import PERMISSION
from cdcworker.worker.cli.client import remote as remotes
from cdcworker.worker.cli.client.follow import parsed
from cdcworker.worker.cli.main import cli
from cdcworker.worker.diagnostics.doctor import row
from cdcworker.worker.offsets.model import ConnectorOffset
from click.testing import CliRunner

URL = "http://leader:8083"


@pytest.fixture
def asked():
    return []


@pytest.fixture
def run(client, monkeypatch, asked):
    def request(method, url, **options):
        options.pop("timeout")
        options.pop("trust_env")
        asked.append((method, url))
        if not url.startswith(URL):
            raise httpx.ConnectError("refused")
        return client(method, url.removeprefix(URL), **options)

    monkeypatch.setattr(httpx, "request", request)
    monkeypatch.setenv("CDC_URL", URL)

    def invoke(*arguments, **options):
        return CliRunner().invoke(cli, arguments, **options)

    return invoke


@pytest.fixture
def write(tmp_path):
    def to_file(content):
        path = tmp_path / "c.json"
        path.write_text(json.dumps(content))
        return str(path)

    return to_file


def result(answer):
    return json.loads(answer.stdout)["result"]


def test_apply_creates_then_changes_then_leaves_alone(run, write, config, cluster):
    config = {**config, "password": "${env:DB_PASSWORD}"}
    path = write({"name": "c", "config": config})
    assert run("connector", "apply", path).output.startswith("created c\n")
    changed = run("connector", "apply", path, "--set", "port=1")
    assert changed.output == "changed c\n  + port: 1\n"
    version = cluster.state.connectors["c"].version
    assert run("connector", "apply", path, "--set", "port=1").output == "unchanged c\n"
    assert cluster.state.connectors["c"].version == version
    removed = run("connector", "apply", path)
    assert removed.output == "changed c\n  - port: 1\n"


def test_apply_does_not_overwrite_who_changed_it_meanwhile(run, write, config, cluster, monkeypatch):
    cluster.add("c", {"port": "1"})
    original = remotes.RemoteCluster.ask

    def ask(self, method, path, body=None, headers=None):
        answer = original(self, method, path, body, headers)
        if method == "GET":
            cluster.add("c", {"port": "2"}, version=99)
        return answer

    monkeypatch.setattr(remotes.RemoteCluster, "ask", ask)
    answer = run("connector", "apply", write({"name": "c", "config": config}))
    assert answer.exit_code == 2
    assert "[rest.version_mismatch]" in answer.output
    assert cluster.state.connectors["c"].config["port"] == "2"


def test_a_dry_run_shows_validates_and_changes_nothing(run, write, config, cluster):
    answer = run("connector", "apply", write({"name": "c", "config": config}), "--dry-run")
    assert answer.exit_code == 0
    assert answer.output.startswith("would be created c\n")
    assert "\ntasks: start 0, 1\n" in answer.output
    assert cluster.state.connectors == {}
    refused = run("connector", "apply", write({"name": "c", "config": {"connector.class": "fake"}}), "--dry-run")
    assert refused.exit_code == 2
    assert 'Missing required configuration "host"' in refused.output


def test_every_change_can_be_tried(run, write, cluster, stopped, kept):
    cluster.add("c")
    cluster.plan("c", "RUNNING", "FAILED")
    assert run("connector", "stop", "c", "--dry-run").output == (
        "would be changed c\n  state: RUNNING -> STOPPED\n  tasks: stop 0, 1\n"
    )
    assert run("connector", "pause", "c", "--dry-run").output.endswith("tasks: none is touched\n")
    assert run("connector", "delete", "c", "--dry-run").output == "would be deleted c\n" + (
        "  state: RUNNING -> none\n  tasks: stop 0, 1\n"
    )
    assert run("connector", "restart", "c", "--failed", "--dry-run").output.endswith("tasks: restart 1\n")
    assert run("connector", "delete", "nope", "--dry-run").exit_code == 1
    stopped(name="d")
    kept.found = [ConnectorOffset({"task": 0}, {"n": 1})]
    assert run("connector", "offsets", "reset", "d", "--dry-run").output == (
        'would be reset d\n  {"task": 0}: {"n": 1} -> none\n'
    )
    change = write({"offsets": [{"partition": {"task": 0}, "offset": {"n": 2}}]})
    assert run("connector", "offsets", "alter", "d", change, "--dry-run").output.endswith('{"n": 1} -> {"n": 2}\n')
    assert cluster.state.connectors["c"].target_state == "RUNNING"
    assert kept.asked == []


def test_a_stream_of_events_is_read_as_browsers_read_it():
    text = 'retry: 1000\n\nid: a-1\nevent: hello\ndata: {"a": 1}\n\n: beat\n\nevent:x\ndata:{}\n\nid: a-2\n'
    assert list(parsed(text.split("\n"))) == [("hello", "a-1", {"a": 1}), ("x", "", {})]


def test_a_plain_secret_is_compared_by_the_cluster_and_never_shown(run, write, config, cluster, words):
    cluster.add("c")
    path = write({"name": "c", "config": {**config, "password": "an0ther-Secret"}})
    for command in (("diff", path), ("--json", "diff", path), ("apply", "--dry-run", path), ("apply", path)):
        shown = run("connector", *command).output
        assert "an0ther-Secret" not in shown
        assert words.secret not in shown
    cluster.add("c")
    assert run("connector", "diff", path).output == "~ password: a secret: another one\n"
    same = write({"name": "c", "config": config})
    version = cluster.state.connectors["c"].version
    assert run("connector", "diff", same, "--exit-code").output == "no difference\n"
    assert run("connector", "apply", same).output == "unchanged c\n"
    assert cluster.state.connectors["c"].version == version
    refused = run("connector", "diff", same, "--set", "port=x").output
    assert "? password: a secret: cannot be compared" in refused


def test_diff_names_every_key_and_only_says_so_by_exit_code_when_asked(run, write, config, cluster):
    cluster.add("c", {"port": "1", "topic.prefix": "t"})
    path = write({"name": "c", "config": {**config, "password": "****", "port": 2}})
    answer = run("connector", "diff", path)
    assert (answer.exit_code, answer.output) == (0, "- port: 1\n+ port: 2\n- topic.prefix: t\n")
    assert run("connector", "diff", path, "--exit-code").exit_code == 1
    assert run("connector", "diff", path, "--name", "other", "--exit-code").output.startswith("other does not exist")


def test_a_plain_secret_that_only_the_file_has_is_not_printed(run, write, config):
    path = write({"name": "c", "config": {**config, "password": "an0ther-Secret"}})
    assert "an0ther-Secret" not in run("connector", "diff", path).output
    assert "an0ther-Secret" not in run("connector", "diff", path, "--json").output


def test_validate_names_keys_and_what_to_do(run, write, config, checks):
    checks.findings = [
        CheckFinding("host", "error", "postgres.unreachable", "no answer", "Start it."),
        CheckFinding("port", "warning", "postgres.wal_level", "hm", ""),
    ]
    path = write({"name": "c", "config": config})
    answer = run("connector", "validate", path)
    assert answer.exit_code == 2
    assert answer.output.splitlines() == ["fake: 1 error", "error: host: no answer", "  Start it.", "warning: port: hm"]
    envelope = json.loads(run("connector", "validate", path, "--json").stdout)
    assert (envelope["ok"], envelope["error"]) == (False, None)
    assert envelope["result"]["error_count"] == 1
    checks.findings = []
    assert run("connector", "validate", path).output == "fake: valid\n"
    assert run("connector", "validate", path, "--no-live-checks").exit_code == 0


def test_a_stored_connector_is_examined_by_a_worker_which_has_its_secrets(run, cluster, client, words):
    asked = []

    def examine(question, timeout_s):
        asked.append(question)
        fix = Repair(("GRANT SELECT ON t TO u",), "then wait", safe=True)
        result = CheckResult("error", "none", "no right", PERMISSION, "database.user", fix=fix)
        return [row(ExaminedTarget(DoctorCheck("rights.select", "Rows have to be read.", lambda _: ()), result, 0.1))]

    api = client.app.state.api
    api.settings = replace(api.settings, services=replace(api.services, examine=examine))
    cluster.add("c")
    told = ("doctor", "c", "--check", "rights", "--check", "a/b", "--deep")
    answer = run(*told)
    assert answer.exit_code == 1, answer.output
    assert "mend  GRANT SELECT ON t TO u;" in answer.output
    assert (asked[0]["config"]["password"], asked[0]["checks"]) == (words.secret, ["rights", "a/b"])
    assert asked[0]["deep"] is True
    found = result(run(*told, "--json"))
    assert (found["target"], found["summary"]) == ("c", "something blocks: 1 error")
    assert found["checks"] == json.loads(json.dumps(examine({}, 1.0)))
    assert run("doctor", "nope").exit_code == 1


def test_describe_is_the_whole_connector(run, cluster, words):
    cluster.add("c")
    cluster.plan("c", "RUNNING", "FAILED")
    cluster.report("c", 0, "RUNNING", metrics={"rows": 12, "lag_s": 0.25})
    cluster.topics["c"] = frozenset({"t.a"})
    output = run("connector", "describe", "c").output
    for part in (
        "c: degraded",
        "[postgres.slot_lost]",
        "make one",
        "task 0: lag_s=0.25  rows=12",
        "topics: t.a",
        "host ",
    ):
        assert part in output
    assert words.secret not in output
    assert set(result(run("connector", "describe", "c", "--json"))) == {"status", "tasks", "topics", "config"}


def test_offsets_are_shown_altered_and_reset(run, write, stopped, kept):
    stopped()
    kept.found = [ConnectorOffset({"server": "s", "task": 0}, {"next": 4})]
    assert run("connector", "offsets", "get", "c").output.splitlines() == [
        "PARTITION                   OFFSET",
        '{"server": "s", "task": 0}  {"next": 4}',
    ]
    saved = write(json.loads(run("connector", "offsets", "get", "c", "--json").stdout))
    done = run("connector", "offsets", "alter", "c", saved)
    assert done.output == "The offsets for this connector have been altered successfully\n"
    assert run("connector", "offsets", "alter", "c", write({"offsets": []})).exit_code == 2
    assert run("connector", "offsets", "reset", "c").exit_code == 0
    assert [changes for _, _, changes in kept.asked] == [kept.found, None]
    assert run("connector", "offsets", "get", "nope").exit_code == 1


def test_the_cluster_in_a_few_lines(run, cluster):
    cluster.add("c")
    cluster.plan("c", "RUNNING", "FAILED")
    output = run("cluster", "info").output
    assert "leader    leader:8083 (epoch 3)" in output
    assert "tasks     1 FAILED, 1 RUNNING" in output
    assert run("cluster", "workers").output == run("cluster", "status").output
    rows = run("cluster", "assignments").output.splitlines()
    assert rows[1].split()[:4] == ["c", "0", "RUNNING", "follower:8083"]
    assert rows[2].endswith("gone")


def test_the_drained_worker_is_never_guessed(run, asked):
    answer = run("--help")
    assert answer.exit_code == 0
    answer = run("cluster", "drain", "--url", f"{URL},http://b:1")
    assert answer.exit_code == 2
    assert asked == []
    answer = run("cluster", "drain", "follower:8083")
    assert asked[-1] == ("POST", "http://follower:8083/v1/drain")
    assert run("cluster", "drain", "nobody").exit_code == 1


def test_what_a_drain_would_hand_over_is_shown(run, client, cluster):
    client.app.state.api.drain = print
    cluster.add("c")
    cluster.plan("c", "RUNNING", worker="leader:8083")
    answer = run("cluster", "drain", "leader:8083", "--dry-run")
    assert answer.output == "would be drained leader:8083\n  tasks: c-0\n"


def test_plugins_and_their_keys(run):
    assert run("plugins").output.splitlines()[1].split()[:2] == ["fake", "source"]
    assert any(
        line.split()[:3] == ["host", "string", "required"] for line in run("plugins", "fake").output.splitlines()
    )
    assert run("plugins", "nothing").exit_code == 1


def test_options_may_stand_before_or_after_the_subcommand(run, cluster):
    cluster.add("c")
    one = run("connector", "--json", "get", "c").stdout
    assert one == run("connector", "get", "c", "--json").stdout
    assert json.loads(one)["command"] == "connector get"
    assert run("connector", "--url", "http://b:1", "get", "c", "--url", URL).exit_code == 0


def test_text_of_others_cannot_steer_the_terminal(run, cluster):
    cluster.add("c", {"topic.prefix": "a\x1b]0;owned\x07\x9b2J"})
    for arguments in (("get", "c"), ("get", "c", "--json"), ("describe", "c")):
        output = run("connector", *arguments).output
        assert not set(output) & {"\x1b", "\x07", "\x9b"}
    assert result(run("connector", "get", "c", "--json"))["topic.prefix"] == "a\x1b]0;owned\x07\x9b2J"


@pytest.mark.parametrize(
    ("arguments", "summary"),
    [
        (["connector", "list"], "1 connector"),
        (["connector", "get", "c"], "c: 4 keys"),
        (["connector", "status", "c"], "c: degraded (1 of 2 tasks FAILED)"),
        (["connector", "describe", "c"], "c: degraded (1 of 2 tasks FAILED)"),
        (["connector", "pause", "c"], "paused c"),
        (["connector", "restart", "c", "--dry-run"], "would be restarted c"),
        (["connector", "offsets", "get", "c"], "1 partition"),
        (["cluster", "info"], "2 workers, leader:8083 leads, tasks: 1 FAILED, 1 RUNNING"),
        (["cluster", "workers"], "2 workers"),
        (["cluster", "assignments"], "2 tasks"),
        (["cluster", "journal"], "0 moves"),
        (["snapshots", "list", "c"], "0 snapshots"),
        (["top"], "2 workers, 1 of 2 tasks running"),
        (["plugins"], "3 plugins"),
        (["plugins", "fake"], "8 keys"),
        (["errors", "rest.exists"], "rest.exists: A connector of this name exists"),
        (["completion", "bash"], "completion for bash"),
        (["context", "list"], "0 contexts"),
    ],
)
def test_the_envelope_says_in_one_line_what_was_done_or_found(
    run, cluster, kept, tmp_path, monkeypatch, arguments, summary
):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    cluster.add("c")
    cluster.plan("c", "RUNNING", "FAILED")
    kept.found = [ConnectorOffset({"server": "s"}, {"n": 1})]
    answer = run(*arguments, "--json")
    assert answer.exit_code == 0, answer.output
    assert json.loads(answer.stdout)["summary"] == summary


def test_of_files_too(run, write, config, cluster):
    path = write({"name": "c", "config": config})
    said = [json.loads(run("connector", verb, path, "--json").stdout)["summary"] for verb in ("diff", "validate")]
    assert said == ["c does not exist", "fake: valid"]
    created = run("connector", "create", path, "--json")
    assert json.loads(created.stdout)["summary"] == "created c"
    changed = run("connector", "diff", path, "--set", "host=other", "--json")
    assert json.loads(changed.stdout)["summary"] == "c: 1 key differs"


def test_a_creation_can_be_tried(run, write, config, cluster):
    answer = run("connector", "create", write({"name": "c", "config": config}), "--dry-run")
    assert answer.output.startswith("would be created c\n")
    assert cluster.state.connectors == {}


def test_a_creation_whose_answer_is_lost_is_sent_again_and_known_again(
    run, write, config, cluster, monkeypatch, client
):
    """The worker ends between taking the request and answering it; the next one is asked."""
    first = []

    def request(method, url, **options):
        sent = {name: options[name] for name in ("json", "headers")}
        answer = client(method, "/connectors", **sent)
        if not first:
            first.append(answer.status_code)
            raise httpx.ReadError("cut")
        assert "a:1" not in url
        return answer

    monkeypatch.setattr(httpx, "request", request)
    answer = run("connector", "create", write({"name": "c", "config": config}), "--url", "http://a:1,http://b:1")
    assert (first, answer.exit_code, answer.stdout) == ([201], 0, "created c\n")
    assert list(cluster.state.connectors) == ["c"]


def test_where_nobody_is_left_to_ask_again_it_is_said_that_it_may_have_happened(run, write, config, monkeypatch):
    def request(method, url, **_):
        raise httpx.ReadError("cut") if "a:1" in url else httpx.ConnectError("refused")

    monkeypatch.setattr(httpx, "request", request)
    path = write({"name": "c", "config": config})
    answer = run("connector", "create", path, "--url", "http://a:1,http://b:1", "--json")
    assert (answer.exit_code, json.loads(answer.stdout)["error"]["code"]) == (3, "rest.no_answer")


def test_a_worker_that_does_not_know_what_became_of_a_change_is_not_asked_again(run, monkeypatch, asked):
    stopped = {"error_code": 503, "message": "the worker stops", "code": "worker.stopped"}

    def request(method, url, **_):
        asked.append(method)
        return httpx.Response(503, json=stopped, headers={"Retry-After": "1"})

    monkeypatch.setattr(httpx, "request", request)
    assert run("connector", "delete", "c").exit_code == 3
    assert asked == ["DELETE"]
