"""The command line without a cluster: what it imports, contexts, addresses that fail over, refusals that pass, manuals."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace

import httpx
import pytest
from cdcworker.schemas.errors import CODES, CdcError
from cdcworker.worker.cli import main as program
from cdcworker.worker.cli.client import contexts, files
from cdcworker.worker.cli.client import remote as remotes
from cdcworker.worker.cli.main import COMMANDS, cli
from cdcworker.worker.cli.render import output
from cdcworker.worker.cli.render.output import TextTable, of_error
from click.testing import CliRunner

HEAVY = {
    "asyncio", "confluent_kafka", "email", "fastavro", "http", "httpx", "importlib.metadata", "kazoo", "numpy", "pandas",
    "psycopg", "pyarrow", "pyspark", "rich", "socket", "ssl", "starlette", "uvicorn", "yaml",
}  # fmt: skip
MODULES_MAX = 60
"""Beyond click and the interpreter: only this program's own main and what it needs."""


def imported(*arguments: str) -> set[str]:
    """What a command imports beyond a bare click."""
    script = (
        "import sys, click, click.shell_completion; before = set(sys.modules)\n"
        "from cdcworker.worker.cli.main import cli\n"
        "try: cli.main(sys.argv[1:], standalone_mode=False, prog_name='cdcworker')\n"
        "except SystemExit: pass\n"
        "print('\\n'.join(['--modules--', *sorted(set(sys.modules) - before)]))"
    )
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True)
    return set(done.stdout.partition("--modules--\n")[2].split())


def test_help_imports_next_to_nothing():
    found = imported("--help")
    assert not found & HEAVY
    assert len(found) < MODULES_MAX, sorted(found)


@pytest.mark.parametrize(
    "command", ["connector", "cluster", "plugins", "schemas", "errors", "context", "doctor", "dev"]
)
def test_the_help_of_a_command_imports_no_library(command):
    assert not imported(command, "--help") & (HEAVY - {"email", "http", "socket", "ssl", "importlib.metadata"})


def test_every_command_has_help_and_every_subcommand_json():
    runner = CliRunner()
    for name in set(COMMANDS):
        assert runner.invoke(cli, [name, "--help"]).exit_code == 0
        command = cli.get_command(None, name)
        for sub in getattr(command, "commands", {"": command}).values():
            if name not in ("start", "sandbox", "quickstart"):
                assert "--json" in [option for parameter in sub.params for option in parameter.opts], (name, sub.name)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    for name in ("CDC_URL", "CDC_CONTEXT", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config"


def run(*arguments):
    return CliRunner().invoke(cli, arguments)


class Net:
    """Workers by address: answers in turn, or an exception."""

    def __init__(self, monkeypatch):
        self.answers = {}
        self.asked = []
        self.slept = []
        monkeypatch.setattr(httpx, "request", self.request)
        clock = SimpleNamespace(monotonic=lambda: sum(self.slept), sleep=self.slept.append)
        monkeypatch.setattr(remotes, "time", clock)

    def request(self, method, url, **_):
        self.asked.append((method, url))
        found = self.answers[httpx.URL(url).host]
        answer = found.pop(0) if len(found) > 1 else found[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def net(monkeypatch):
    return Net(monkeypatch)


def no_leader(after="1"):
    body = {"error_code": 409, "message": "no leader", "code": "rest.no_leader"}
    return httpx.Response(409, json=body, headers={"Retry-After": after})


def test_the_next_worker_is_asked_when_one_is_down(net):
    net.answers = {"a": [httpx.ConnectError("refused")], "b": [httpx.Response(200, json=["s-key"])]}
    answer = run("schemas", "--url", "http://a:1", "--url", "http://b:2")
    assert (answer.exit_code, answer.stdout) == (0, "s-key\n")
    assert "http://b:2 answers instead of http://a:1" in answer.stderr


def test_no_worker_at_all_is_exit_code_3_and_names_each(net):
    net.answers = {"a": [httpx.ConnectError("refused")], "b": [httpx.ConnectTimeout("slow")]}
    answer = run("schemas", "--url", "http://a:1,http://b:2", "--json")
    error = json.loads(answer.stdout)["error"]
    assert answer.exit_code == 3
    assert error["code"] == "rest.unreachable"
    assert "http://a:1" in error["message"]
    assert "http://b:2" in error["message"]
    assert error["suggestion"]


def test_a_change_that_was_handed_over_is_never_sent_twice(net):
    net.answers = {"a": [httpx.ReadError("cut")], "b": [httpx.Response(202)]}
    answer = run("connector", "pause", "c", "--url", "http://a:1,http://b:2", "--json")
    assert answer.exit_code == 3
    assert json.loads(answer.stdout)["error"]["code"] == "rest.no_answer"
    assert [url for _, url in net.asked] == ["http://a:1/connectors/c/pause?details=true"]


def test_a_read_that_was_cut_is_asked_of_the_next(net):
    net.answers = {"a": [httpx.ReadError("cut")], "b": [httpx.Response(200, json=[])]}
    assert run("schemas", "--url", "http://a:1,http://b:2").exit_code == 0


def test_without_a_leader_the_command_waits_and_says_so(net):
    net.answers = {"a": [no_leader(), no_leader(), httpx.Response(202)]}
    answer = run("connector", "pause", "c", "--url", "http://a:1")
    assert (answer.exit_code, answer.stdout) == (0, "paused c\n")
    assert answer.stderr.count("no leader: waiting for it, 30 s at most") == 1
    assert net.slept == [1.0, 1.0]


def test_the_wait_has_a_deadline(net):
    net.answers = {"a": [no_leader("20")]}
    answer = run("connector", "pause", "c", "--url", "http://a:1", "--wait", "30", "--json")
    assert net.slept == [20.0, 10.0]
    assert answer.exit_code == 1
    assert json.loads(answer.stdout)["error"]["code"] == "rest.no_leader"


def test_a_conflict_that_does_not_pass_is_not_waited_for(net):
    net.answers = {"a": [httpx.Response(409, json={"error_code": 409, "message": "exists", "code": "rest.exists"})]}
    assert run("connector", "pause", "c", "--url", "http://a:1").exit_code == 1
    assert net.slept == []


@pytest.mark.parametrize(("status", "code"), [(400, 2), (404, 1), (401, 3), (403, 3), (422, 2), (500, 1), (504, 3)])
def test_exit_codes_follow_the_status(net, status, code):
    net.answers = {"a": [httpx.Response(status, text="<html>")]}
    answer = run("connector", "get", "c", "--url", "http://a:1", "--json")
    assert answer.exit_code == code
    assert json.loads(answer.stdout)["error"]["message"] == f"HTTP {status}"


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [("postgres.wal_level", 2), ("postgres.unreachable", 3), ("postgres.slot_lost", 3), ("internal.unexpected", 1)],
)
def test_exit_codes_follow_the_kind(code, exit_code):
    import cdcworker.connectors.postgres.errors  # noqa: F401

    assert of_error(CdcError(code, "x"), "c", as_json=False).exit_code == exit_code


# -- contexts ---------------------------------------------------------------------------------------------------------


def test_a_context_is_added_used_listed_and_removed(home, net):
    net.answers = {"a": [httpx.Response(200, json=["of-a"])], "b": [httpx.Response(200, json=["of-b"])]}
    assert run("context", "list").output == "  NAME  ADDRESSES\n"
    assert run("context", "add", "one", "http://a:1").exit_code == 0
    assert run("context", "add", "two", "http://b:1", "http://c:1").exit_code == 0
    assert run("schemas").stdout == "of-a\n"
    assert run("context", "use", "two").exit_code == 0
    assert run("schemas").stdout == "of-b\n"
    assert run("schemas", "--context", "one").stdout == "of-a\n"
    assert run("context", "list").output.splitlines()[2] == "*  two   http://b:1, http://c:1"
    assert run("context", "remove", "two").exit_code == 0
    assert json.loads((home / "cdcworker" / "contexts.json").read_text())["current"] == ""
    assert contexts.chosen((), "") == (contexts.DEFAULT_URL,)


def test_what_the_command_says_goes_before_the_environment_and_that_before_the_context(monkeypatch):
    contexts.save(contexts.Contexts("one", {"one": ("http://a:1",), "two": ("http://b:1",)}))
    assert contexts.chosen((), "") == ("http://a:1",)
    monkeypatch.setenv("CDC_CONTEXT", "two")
    assert contexts.chosen((), "") == ("http://b:1",)
    monkeypatch.setenv("CDC_URL", "http://c:1/, http://d:1")
    assert contexts.chosen((), "") == ("http://c:1", "http://d:1")
    assert contexts.chosen((), "one") == ("http://a:1",)
    assert contexts.chosen(("http://e:1",), "one") == ("http://e:1",)


def test_an_unknown_context_and_a_torn_file_are_exit_code_2(home):
    assert run("schemas", "--context", "nope").exit_code == 2
    (home / "cdcworker").mkdir(parents=True)
    (home / "cdcworker" / "contexts.json").write_text("{")
    answer = run("schemas", "--json")
    assert answer.exit_code == 2
    assert json.loads(answer.stdout)["error"]["code"] == "cli.contexts_unreadable"


@pytest.mark.parametrize(
    "url", ["localhost:8083", "ftp://a", "http://", "http://u:p4ss@a:1", "http://a:x", "http://a/?q"]
)
def test_an_address_that_is_none_is_refused_without_its_password(url):
    answer = run("schemas", "--url", url)
    assert answer.exit_code == 2
    assert "p4ss" not in answer.output
    assert run("context", "add", "n", url).exit_code == 2


# -- manuals and output -----------------------------------------------------------------------------------------------


def test_every_code_has_a_page():
    listing = run("errors")
    assert listing.exit_code == 0
    assert len(listing.output.splitlines()) == len(CODES) + 1
    page = run("errors", "postgres.wal_level").output
    assert "wal_level is not logical" in page
    assert "exit code  2" in page
    page = json.loads(run("errors", "rest.unreachable", "--json").stdout)["result"]
    assert (page["exit"], bool(page["suggestion"]), bool(page["cause"])) == (3, True, True)


def test_an_unknown_code_names_the_nearest():
    answer = run("errors", "postgres.wal_lvel")
    assert answer.exit_code == 2
    assert "postgres.wal_level" in answer.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_script_that_calls_the_command(shell):
    script = run("completion", shell).output
    assert "_CDCWORKER_COMPLETE" in script
    assert "cdcworker" in script


def test_completion_completes_commands_options_and_names(monkeypatch):
    def complete(words, last):
        from click.shell_completion import ShellComplete

        return [item.value for item in ShellComplete(cli, {}, "cdcworker", "_X").get_completions(words, last)]

    assert complete([], "con") == ["connector", "connection", "context"]
    assert complete(["cluster"], "dr") == ["drain"]
    assert complete(["connector", "restart", "x"], "--fa") == ["--failed"]
    monkeypatch.setattr(httpx, "get", lambda *_, **__: httpx.Response(200, json=["shop", "other"]))
    assert complete(["connector", "get"], "s") == ["shop"]

    def refuse(*_, **__):
        raise httpx.ConnectError("refused")

    monkeypatch.setattr(httpx, "get", refuse)
    assert complete(["connector", "get"], "s") == []


def test_a_terminal_gets_colours_and_no_color_is_obeyed(monkeypatch, capsys):
    content = TextTable(("NAME", "STATE"), [("c", "RUNNING")], before="head")
    output.show(content)
    assert capsys.readouterr().out == "head\nNAME  STATE\nc     RUNNING\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    output.show(content)
    assert "\x1b[" in capsys.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    output.show(content)
    assert "\x1b" not in capsys.readouterr().out


def start(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["cdcworker", *arguments])
    with pytest.raises(SystemExit) as ended:
        program.main()
    return ended.value.code


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["connector", "get", "--json"], "connector get"),
        (["nonsense", "--json"], ""),
        (["errors", "a", "b", "--json"], "errors"),
    ],
)
def test_a_wrong_command_line_is_an_envelope_too(monkeypatch, capsys, arguments, command):
    assert start(monkeypatch, *arguments) == 2
    envelope = json.loads(capsys.readouterr().out)
    assert envelope["ok"] is False
    assert envelope["error"]["code"] == "cli.usage"
    assert envelope["command"].startswith(command)


def test_our_errors_end_the_program_with_the_code_of_their_kind(monkeypatch, capsys):
    def raising(*_, **__):
        raise CdcError("rest.unreachable", "nobody")

    monkeypatch.setattr(cli, "main", raising)
    assert start(monkeypatch, "jars", "verify", "--json") == 3
    assert json.loads(capsys.readouterr().out)["error"]["message"] == "nobody"
    assert start(monkeypatch, "jars", "verify") == 3
    assert "[rest.unreachable] nobody" in capsys.readouterr().err


def test_a_file_that_cannot_be_read_is_told_without_a_trace(monkeypatch, capsys, tmp_path):
    def raising(*_, **__):
        raise PermissionError(13, "Permission denied", str(tmp_path / "users.yaml"))

    monkeypatch.setattr(cli, "main", raising)
    assert start(monkeypatch, "auth", "list", str(tmp_path / "users.yaml"), "--json") == 3
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["code"], error["message"]) == ("cli.file_failed", f"{tmp_path}/users.yaml: Permission denied")


def test_a_scheme_that_is_missing_is_offered():
    answer = run("schemas", "--url", "localhost:8083")
    assert "did you mean http://localhost:8083?" in answer.stderr


def test_a_file_that_cannot_be_replaced_is_told_by_its_own_name(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder") as caught:
        files.replace(tmp_path / "folder", "x")
    assert caught.value.filename == str(tmp_path / "folder")
    assert [item.name for item in tmp_path.iterdir() if item.is_file()] == []


def test_two_commands_at_once_lose_nothing(home, tmp_path):
    """Each reads the file, then writes it as a whole: one waits for the other."""
    add = "import sys; from cdcworker.worker.cli.main import main; sys.argv[0] = 'cdcworker'; main()"
    users = str(tmp_path / "users.yaml")
    commands = [["context", "add", f"c{n}", f"http://a:{n + 1}"] for n in range(4)]
    commands += [["auth", "add", users, f"u{n}", "--grant", "read", "--certificate", f"u{n}"] for n in range(4)]
    running = [subprocess.Popen([sys.executable, "-c", add, *words], stdout=subprocess.DEVNULL) for words in commands]
    assert [process.wait(60) for process in running] == [0] * 8
    assert sorted(contexts.load().urls) == ["c0", "c1", "c2", "c3"]
    found = json.loads(run("auth", "list", users, "--json").stdout)["result"]["users"]
    assert sorted(user["name"] for user in found) == ["u0", "u1", "u2", "u3"]


@pytest.mark.parametrize(
    ("arguments", "near"),
    [
        (["conector", "list"], "connector"),
        (["connector", "lst"], "list"),
        (["cluster", "worker"], "workers"),
        (["connector", "list", "--jsn"], "--json"),
    ],
)
def test_a_typing_error_names_what_was_meant(monkeypatch, capsys, arguments, near):
    assert start(monkeypatch, *arguments) == 2
    said = capsys.readouterr().err
    assert f"Did you mean '{near}'?" in said or f"Did you mean {near}" in said
