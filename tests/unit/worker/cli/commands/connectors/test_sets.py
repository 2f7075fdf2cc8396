"""`cdcworker plan`, `apply` and `export` against the application in memory."""

from __future__ import annotations

import json

import httpx
import pytest
import yaml
from cdcworker.worker.cli.connector_sets.plan import as_told, reads
from cdcworker.worker.cli.main import cli
from cdcworker.worker.security.authenticate import Authenticator
from cdcworker.worker.security.credentials import hashed
from cdcworker.worker.security.gate import Gate
from cdcworker.worker.security.users import UserFile
from click.testing import CliRunner

URL = "http://leader:8083"
TOKEN = "S" * 43


@pytest.fixture
def asked():
    return []


@pytest.fixture
def run(client, running_on):
    return running_on(client)


@pytest.fixture
def running_on(monkeypatch, asked):
    """Makes what runs the command line against an application."""
    return lambda client: _running_on(client, monkeypatch, asked)


def _running_on(client, monkeypatch, asked):
    def request(method, url, **options):
        options.pop("timeout")
        options.pop("trust_env")
        asked.append((method, url.removeprefix(URL)))
        return client(method, url.removeprefix(URL), **options)

    monkeypatch.setattr(httpx, "request", request)
    monkeypatch.setenv("CDC_URL", URL)

    def invoke(*arguments, **options):
        return CliRunner().invoke(cli, list(map(str, arguments)), **options)

    return invoke


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "set"
    path.mkdir()
    return path


@pytest.fixture
def put(folder, config):
    def write(name, settings=None, **members):
        content = {"name": name, "config": {**config, **(settings or {})}} | members
        (folder / f"{name}.json").write_text(json.dumps(content))

    return write


def result(answer):
    return json.loads(answer.stdout)["result"]


def effects(answer):
    return {one["name"]: one["effect"] for one in result(answer)["connectors"]}


def changes(asked):
    return [
        (method, path) for method, path in asked if method != "GET" and "validate" not in path and "dry_run" not in path
    ]


def test_a_plan_changes_nothing_and_says_what_applying_does(run, put, folder, cluster, asked):
    put("a")
    put("b")
    answer = run("plan", folder)
    assert answer.exit_code == 0, answer.output
    assert answer.output.splitlines()[-1] == "2 created, 0 changed, 0 deleted, 0 unchanged"
    assert "+ a (source): created" in answer.output
    assert cluster.state.connectors == {}
    assert changes(asked) == []
    assert run("plan", folder, "--exit-code").exit_code == 1


def test_applying_twice_changes_nothing_the_second_time(run, put, folder, cluster, asked):
    put("a")
    put("b", {"port": "1"})
    first = run("apply", folder, "--yes")
    assert first.exit_code == 0, first.output
    assert first.output.splitlines() == ["created a", "created b", "2 done, 0 failed, 0 left out"]
    before = cluster.state.connectors
    asked.clear()
    again = run("apply", folder, "--json", "--yes")
    assert effects(again) == {"a": "unchanged", "b": "unchanged"}
    assert cluster.state.connectors == before
    assert changes(asked) == []
    assert run("plan", folder, "--exit-code").exit_code == 0


def test_only_what_differs_is_changed(run, put, folder, cluster):
    put("a")
    put("b")
    run("apply", folder, "--yes")
    untouched = cluster.state.connectors["a"]
    put("b", {"port": "2"})
    answer = run("apply", folder, "--json", "--yes")
    assert effects(answer) == {"a": "unchanged", "b": "changed"}
    assert cluster.state.connectors["a"] == untouched
    assert cluster.state.connectors["b"].config["port"] == "2"


def test_labels_are_put_on_and_bound_what_is_pruned(run, put, folder, cluster):
    put("a")
    put("b", labels={"tier": "gold"})
    assert run("apply", folder, "--label", "team=shop", "--yes").exit_code == 0
    assert dict(cluster.state.connectors["b"].labels) == {"tier": "gold", "team": "shop"}
    cluster.add("others")
    (folder / "b.json").unlink()
    planned = run("plan", folder, "--label", "team=shop", "--prune")
    assert "- b (source): deleted" in planned.output
    assert "others" not in planned.output
    assert run("apply", folder, "--label", "team=shop", "--prune", "--yes").exit_code == 0
    assert sorted(cluster.state.connectors) == ["a", "others"]


def test_labels_alone_change_nothing_else(run, put, folder, cluster):
    put("a")
    run("apply", folder, "--yes")
    version = cluster.state.connectors["a"].config
    put("a", labels={"tier": "gold"})
    assert "labels: tier=gold" in run("plan", folder).output
    assert run("apply", folder, "--yes").exit_code == 0
    assert dict(cluster.state.connectors["a"].labels) == {"tier": "gold"}
    assert cluster.state.connectors["a"].config == version


def test_pruning_without_a_label_is_refused(run, put, folder):
    put("a")
    answer = run("apply", folder, "--prune", "--yes")
    assert answer.exit_code == 2
    assert "--prune needs --label" in answer.output


def test_without_a_terminal_applying_needs_to_be_told(run, put, folder, cluster):
    put("a")
    answer = run("apply", folder)
    assert answer.exit_code == 2
    assert "--yes" in answer.output
    assert cluster.state.connectors == {}


def test_one_that_is_not_valid_keeps_all_from_being_applied(run, put, folder, cluster, words):
    put("a")
    put("b", {"connector.class": "no-such"})
    assert run("plan", folder).exit_code == 2
    answer = run("apply", folder, "--yes")
    assert answer.exit_code == 2
    assert "not valid: b" in answer.output
    assert words.secret not in answer.output
    assert cluster.state.connectors == {}


def test_a_kept_plan_is_carried_out_while_it_is_true(run, put, folder, cluster, tmp_path):
    put("a")
    kept = tmp_path / "plan.json"
    assert run("plan", folder, "--out", kept).exit_code == 0
    assert run("apply", folder, "--plan", kept).exit_code == 0
    assert sorted(cluster.state.connectors) == ["a"]


@pytest.mark.parametrize("what", ["file", "cluster", "option"])
def test_a_plan_that_is_not_true_any_more_is_refused(run, put, folder, cluster, tmp_path, what):
    put("a")
    run("apply", folder, "--yes")
    put("a", {"port": "3"})
    kept = tmp_path / "plan.json"
    run("plan", folder, "--out", kept)
    if what == "file":
        put("a", {"port": "4"})
    elif what == "cluster":
        run("connector", "pause", "a")
    answer = run("apply", folder, "--plan", kept, *(["--label", "x=y"] if what == "option" else []))
    assert answer.exit_code == 2
    assert "[cli.plan_stale]" in answer.output
    assert cluster.state.connectors["a"].config.get("port") not in ("3", "4")


def test_another_secret_of_the_file_makes_a_plan_untrue(run, put, folder, tmp_path, config, words):
    key = next(name for name, value in config.items() if value == words.secret)
    put("a")
    kept = tmp_path / "plan.json"
    run("plan", folder, "--out", kept)
    assert words.secret not in kept.read_text()
    put("a", {key: "another"})
    assert "[cli.plan_stale]" in run("apply", folder, "--plan", kept).output


def test_who_changes_a_connector_at_the_same_moment_is_not_overwritten(run, put, folder, cluster, meanwhile):
    put("a")
    put("b")
    run("apply", folder, "--yes")
    put("a", {"port": "3"})
    put("b", {"port": "3"})
    meanwhile("connector", "pause", "a")
    answer = run("apply", folder, "--yes")
    assert answer.exit_code == 1
    assert "not changed a" in answer.output
    assert "changed b" in answer.output.splitlines()
    assert cluster.state.connectors["a"].config.get("port") != "3"


def test_nothing_is_deleted_after_a_failure(run, put, folder, cluster, meanwhile):
    put("a")
    put("b")
    run("apply", folder, "--label", "team=shop", "--yes")
    put("a", {"port": "3"})
    (folder / "b.json").unlink()
    meanwhile("connector", "pause", "a")
    answer = run("apply", folder, "--label", "team=shop", "--prune", "--yes", "--json")
    assert answer.exit_code == 1
    assert result(answer)["skipped"] == 1
    assert "b" in cluster.state.connectors


def test_what_is_exported_is_applied_without_a_change(run, put, folder, tmp_path, words, config):
    put("a", labels={"team": "shop"})
    put("b c")
    run("apply", folder, "--yes")
    out = tmp_path / "out"
    answer = run("export", out)
    assert answer.exit_code == 0, answer.output
    texts = [path.read_text() for path in sorted(out.iterdir())]
    assert len(texts) == 2
    assert words.secret not in "".join(texts)
    assert effects(run("plan", out, "--json")) == {"a": "unchanged", "b c": "unchanged"}
    assert [one["changed"] for one in result(run("export", out, "--json"))["files"]] == [False, False]


def test_a_name_that_is_not_there_is_not_exported(run, tmp_path):
    answer = run("export", tmp_path / "out", "nobody")
    assert answer.exit_code == 1
    assert "nobody" in answer.output


def test_files_in_yaml_and_with_several_connectors_are_read_as_they_stand(run, folder, cluster, config):
    lines = "".join(f"    {key}: {json.dumps(value)}\n" for key, value in config.items())
    (folder / "deeper").mkdir()
    (folder / "deeper" / "some.yaml").write_text(
        f"name: y\nconfig:\n{lines}    port: 010\n---\nname: z\nconfig:\n{lines}"
    )
    (folder / "list.json").write_text(json.dumps({"connectors": [{"name": "l", "config": config}]}))
    (folder / ".hidden.json").write_text("{")
    assert run("apply", folder, "--yes").exit_code == 0
    assert sorted(cluster.state.connectors) == ["l", "y", "z"]
    assert cluster.state.connectors["y"].config["port"] == "010"


def test_a_number_of_json_stays_as_it_is_written(run, folder, cluster, config):
    text = json.dumps({"name": "a", "config": {**config, "host": 0}})
    (folder / "a.json").write_text(text.replace('"host": 0', '"host": 1.50'))
    assert run("apply", folder, "--yes").exit_code == 0
    assert cluster.state.connectors["a"].config["host"] == "1.50"


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"labels": {"bad key!": "x"}}, "A label's key has"),
        ({"labels": {"x": "y" * 64}}, "A label's value has"),
        ({"config": {"connector.class": "fake"}}, "host: Missing required"),
    ],
)
@pytest.mark.parametrize("there", [False, True])
def test_whatever_the_cluster_would_refuse_is_in_the_plan_and_nothing_is_changed(
    run, put, folder, cluster, members, said, there
):
    put("a")
    if there:
        put("z")
        run("apply", folder, "--yes")
    put("z", **members)
    put("a", {"port": "3"})
    before = cluster.state.connectors
    planned = run("plan", folder)
    assert planned.exit_code == 2
    assert said in planned.output
    assert planned.output.splitlines()[-1].endswith("; 1 not valid")
    assert "not valid: z" in run("apply", folder, "--yes").output
    assert cluster.state.connectors == before


@pytest.mark.parametrize("there", [False, True])
def test_a_connector_that_the_caller_may_not_change_is_named(
    running_on, connect, herder, cluster, put, folder, tmp_path, monkeypatch, there
):
    token = {"id": "0" * 12, "hash": hashed(TOKEN, log_n=10)}
    users = tmp_path / "users.yaml"
    users.write_text(
        yaml.safe_dump({"users": [{"name": "ann", "grants": ["admin:shop-", "read:other-"], "tokens": [token]}]})
    )
    authenticator = Authenticator(UserFile(users), decoy_hash=token["hash"])
    monkeypatch.setenv("CDC_TOKEN", f"cdc_{token['id']}_{TOKEN}")
    run = running_on(connect(herder, gate=Gate(authenticator)))
    if there:
        cluster.add("other-a", labels={"team": "shop"})
        cluster.add("hidden-a", labels={"team": "shop"})
    for name in ("shop-a", "other-a", "hidden-a"):
        put(name)
    planned = run("plan", folder, "--json")
    authenticator.close()
    assert planned.exit_code == 2
    errors = {one["name"]: [item["message"] for item in one["findings"]] for one in result(planned)["connectors"]}
    assert errors["shop-a"] == []
    assert "ann has not the role admin on connector other-a" in errors["other-a"]
    assert "ann has not the role admin on connector hidden-a" in errors["hidden-a"]
    for path in folder.iterdir():
        path.unlink()
    put("shop-a")
    pruned = run("plan", folder, "--json", "--prune", "--label", "team=shop")
    deleted = [one for one in result(pruned)["connectors"] if one["effect"] == "deleted"]
    assert [one["name"] for one in deleted] == ["other-a"] * there
    assert all("ann has not the role admin" in one["findings"][0]["message"] for one in deleted)


def test_a_connector_that_somebody_else_has_deleted_is_not_made_again_by_a_change(run, put, folder, cluster, meanwhile):
    put("a")
    put("b")
    run("apply", folder, "--label", "team=shop", "--yes")
    put("a", {"port": "3"})
    (folder / "b.json").unlink()
    meanwhile("connector", "delete", "a")
    answer = run("apply", folder, "--yes")
    assert answer.exit_code == 1
    assert "not changed a" in answer.output
    assert sorted(cluster.state.connectors) == ["b"]


def test_what_somebody_else_has_deleted_is_deleted(run, put, folder, cluster, meanwhile):
    put("a")
    put("b")
    run("apply", folder, "--label", "team=shop", "--yes")
    (folder / "b.json").unlink()
    meanwhile("connector", "delete", "b")
    answer = run("apply", folder, "--label", "team=shop", "--prune", "--yes")
    assert answer.exit_code == 0, answer.output
    assert "somebody else has deleted it" in answer.output
    assert sorted(cluster.state.connectors) == ["a"]


@pytest.fixture
def meanwhile(run, monkeypatch):
    """Makes a command run between the plan and the first change."""
    from cdcworker.worker.cli.connector_sets import cluster as applied

    make = applied.make_plan

    def then(*words):
        def changed_meanwhile(*arguments, **options):
            found = make(*arguments, **options)
            assert run(*words).exit_code == 0
            return found

        monkeypatch.setattr(applied, "make_plan", changed_meanwhile)

    return then


def test_a_value_is_shown_only_where_the_cluster_shows_it():
    def change(key, before, after):
        return {"key": key, "change": "change", "from": before, "to": after}

    changes = [change(key, None, "x") for key in ("told", "secret", "unknown")]
    changes += [change("kept", "${env:A}", "y"), change("gone", "x", None)]
    told = {"told": {"to": "x"}, "secret": {"to": "****"}, "kept": {"from": "${env:A}", "to": "****"}}
    shown = {one["key"]: (one["from"], one["to"]) for one in as_told(changes, told)}
    assert shown == {
        "told": (None, "x"),
        "secret": (None, "****"),
        "unknown": (None, "****"),
        "kept": ("${env:A}", "****"),
        "gone": ("****", None),
    }


@pytest.mark.parametrize(
    ("effect", "kind", "mode", "keys", "text"),
    [
        ("created", "source", None, (), "all its tables, in a snapshot"),
        ("created", "source", "no_data", (), ""),
        ("changed", "source", "no_data", ("table.include.list",), ""),
        ("changed", "source", "initial", ("table.include.list",), "tables that its filters add, in a snapshot"),
        ("changed", "source", "always", ("poll.interval.ms",), "all its tables, in a snapshot"),
        ("changed", "source", "initial", ("poll.interval.ms",), ""),
        ("created", "sink", None, (), "its topics, from their beginning"),
        ("changed", "sink", None, ("topics",), "topics that it has not read yet, from their beginning"),
        ("changed", "sink", None, ("batch.size",), ""),
        ("created", "", None, (), ""),
    ],
)
def test_a_plan_says_what_is_read(effect, kind, mode, keys, text):
    config = {"snapshot.mode": mode} if mode else {}
    changes = [{"key": key} for key in keys]
    assert reads(effect, kind, config, changes, takes_snapshots=True) == text
    if kind == "source":
        assert reads(effect, kind, config, changes, takes_snapshots=False) == ""


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.json", '{"name": "a", "config": {"password": "hidden" "x"}}', "line 1, column 47"),
        ("a.yaml", "name: a\nconfig: {password: hidden\n", "line 3, column 1"),
        ("a.yaml", "name: a\nconfig:\n  password: *hidden\n", "line 3, column 13"),
        ("a.json", "[1]", "number 1: expected an object"),
        ("a.json", '{"config": {}}', "`name` is missing"),
        ("a.json", '{"name": "a", "config": {"name": "b"}}', "`config` says another one"),
        ("a.json", '{"name": "a", "config": {}, "offsets": []}', "unknown member 'offsets'"),
        ("a.json", '{"name": "a", "config": {}, "labels": {"x": 1}}', "`labels` has to be"),
        ("a.json", '{"name": "a", "config": {}, "initial_state": "asleep"}', "`initial_state` has to be"),
        ("a.json", '[{"name": "a"}, {"name": "a"}]', "a is in"),
        ("a.txt", "", "no file ends in"),
        ("a.json", '{"name": "a", "config": {"port": 1, "port": 2}}', "the key port stands twice"),
        ("a.yaml", "name: a\nconfig:\n  port: 1\n  port: 2\n", "line 4, column 3: the key port stands twice"),
        ("a.json", '{"name": "a", "config": {"port": NaN}}', "neither JSON nor YAML"),
        ("a.json", '{"name": "a", "config": {"host": "hidden\\ud800"}}', "neither JSON nor YAML"),
        ("a.yaml", 'name: "a\\ud800"', "neither JSON nor YAML"),
    ],
)
def test_a_file_that_holds_anything_else_is_named(run, folder, name, text, said):
    (folder / name).write_text(text)
    answer = run("plan", folder)
    assert answer.exit_code == 2
    assert said in answer.output
    assert "hidden" not in answer.output


def test_a_file_that_is_no_plan_is_refused(run, put, folder, tmp_path):
    put("a")
    path = tmp_path / "p.json"
    path.write_text('{"form": 1}')
    answer = run("apply", folder, "--plan", path)
    assert answer.exit_code == 2
    assert "is no plan" in answer.output


def test_two_hundred_connectors_that_are_as_they_should_be_cost_two_requests(run, put, folder, asked):
    for number in range(200):
        put(f"c{number}")
    assert run("apply", folder, "--yes").exit_code == 0
    asked.clear()
    assert run("apply", folder, "--yes").exit_code == 0
    assert len([path for _, path in asked if "validate=false&dry_run" not in path]) == 2
