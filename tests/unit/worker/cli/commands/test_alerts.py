"""`cdcworker alerts check` and `test`: a file is read as a worker reads it, and receivers get a trial."""

from __future__ import annotations

import json

import pytest
from cdcworker.worker.cli.main import cli
from click.testing import CliRunner

from tests.record_sinks import Webhook


@pytest.fixture
def hook():
    one = Webhook()
    yield one
    one.close()


@pytest.fixture
def file(tmp_path, hook):
    path = tmp_path / "alerts.yaml"
    receivers = [
        {"name": "ops", "url": hook.url},
        {"name": "team", "kind": "slack", "url": hook.url, "connectors": ["a*", "b"]},
    ]
    path.write_text(json.dumps({"receivers": receivers}))
    path.chmod(0o600)
    return path


def run(*argv):
    return CliRunner().invoke(cli, ["alerts", *map(str, argv)])


def test_check_lists_the_receivers(file):
    done = run("check", file)
    assert done.exit_code == 0
    assert [line.split() for line in done.output.splitlines()[1:]] == [
        ["ops", "webhook", "warning", "*"],
        ["team", "slack", "warning", "a*", "b"],
    ]


def test_check_tells_a_mistake_by_its_place(file):
    file.write_text("receivers: [{name: x, url: 'gopher://secret'}]")
    done = run("check", file, "--json")
    assert done.exit_code == 2
    assert json.loads(done.output)["error"]["code"] == "alerts.file_invalid"
    assert "secret" not in done.output


def test_test_sends_each_receiver_a_trial_and_its_end(file, hook):
    assert run("test", file).exit_code == 0
    first, second, *slack = hook.events
    assert [event["type"] for event in (first, second)] == ["incident.opened", "incident.resolved"]
    assert first["data"]["id"] == second["data"]["id"]
    assert ["trial" in event["text"] for event in slack] == [True, True]


def test_test_asks_one_receiver_and_fails_when_it_refuses(file, hook):
    hook.trouble = lambda number, events: 404
    done = run("test", file, "--receiver", "team", "--json")
    assert done.exit_code == 1
    assert '"status 404"' in done.output
    assert len(hook.requests) == 1
    assert run("test", file, "--receiver", "nobody").exit_code == 2
