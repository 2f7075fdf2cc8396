"""`cdcworker connector`: connectors over the REST API of any worker."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote

import click

DEFAULT_URL = "http://127.0.0.1:8083"
TIMEOUT_S = 100.0
"""Longer than the worker's own limit, so that its answer is what one sees."""
EXIT_RUNTIME, EXIT_VALIDATION, EXIT_ENVIRONMENT = 1, 2, 3
Body = Mapping[str, Any]
Texts = Callable[[Any], str]


class Remote:
    """One worker, and how answers are shown."""

    def __init__(self, url: str, as_json: bool, group: str = "connector") -> None:
        self.url = url.rstrip("/")
        self.as_json = as_json
        self._group = group

    def call(self, command: str, method: str, path: str, text: Texts, body: Any = None) -> None:
        """One request; its result is printed, a failure ends the program with the exit code of its kind."""
        import httpx

        try:
            answer = httpx.request(method, self.url + path, json=body, timeout=TIMEOUT_S, trust_env=False)
        except (httpx.HTTPError, httpx.InvalidURL) as exc:
            self._fail(command, {"code": "rest.unreachable", "message": f"{self.url}: {exc}"}, EXIT_ENVIRONMENT)
        content = _content(answer)
        if answer.is_success:
            self._show(command, content, text)
        else:
            error = content if isinstance(content, dict) else {"message": f"HTTP {answer.status_code}"}
            code = EXIT_VALIDATION if answer.status_code in (400, 412) else EXIT_RUNTIME
            self._fail(command, {**error, "error_code": answer.status_code}, code)

    def _show(self, command: str, content: Any, text: Texts) -> None:
        if self.as_json:
            click.echo(_envelope(f"{self._group} {command}", True, content, None))
        elif shown := text(content):
            click.echo(shown)

    def _fail(self, command: str, error: Body, code: int) -> NoReturn:
        if self.as_json:
            click.echo(_envelope(f"{self._group} {command}", False, None, error))
        else:
            click.echo(f"Error: {error['message']}", err=True)
            if error.get("suggestion"):
                click.echo(f"  {error['suggestion']}", err=True)
        sys.exit(code)


def _content(answer: Any) -> Any:
    try:
        return answer.json()
    except ValueError:
        return None


def _envelope(command: str, ok: bool, result: Any, error: Body | None) -> str:
    summary = "" if error is None else error["message"].partition("\n")[0]
    out = {"command": command, "ok": ok, "summary": summary, "result": result, "error": error}
    return json.dumps(out, ensure_ascii=False, indent=2)


def _segment(name: str) -> str:
    return name.replace(".", "%2E") if name in (".", "..") else quote(name, safe="")


def _pretty(content: Any) -> str:
    return json.dumps(content, ensure_ascii=False, indent=2)


def _listing(content: Any) -> str:
    rows = []
    for name, expanded in sorted(content.items()):
        status = expanded["status"]
        running = sum(task["state"] == "RUNNING" for task in status["tasks"])
        tasks = f"{running}/{len(status['tasks'])}"
        rows.append((name, status["type"], status["connector"]["state"], tasks, status.get("health", "")))
    return table(("NAME", "TYPE", "STATE", "TASKS", "HEALTH"), rows)


def _status(content: Any) -> str:
    connector = content["connector"]
    rows = [("connector", connector["state"], connector["worker_id"], connector.get("trace", ""))]
    rows += [
        (f"task {task['id']}", task["state"], task["worker_id"], task.get("trace", "")) for task in content["tasks"]
    ]
    head = f"{content['name']}: {content.get('health', '')}".rstrip(": ")
    return head + "\n" + table(("WHAT", "STATE", "WORKER", "WHY"), rows)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (head, *rows))
    return "\n".join(line.rstrip() for line in lines)


def _read_config(source: Path | None, settings: tuple[str, ...]) -> tuple[str | None, dict[str, Any]]:
    """(name, config) of a file in either of Connect's forms, with `key=value` settings laid over it."""
    given: Any = {}
    if source is not None:
        try:
            given = json.loads(sys.stdin.read() if str(source) == "-" else source.read_text(encoding="utf-8"))
        except (OSError, ValueError) as exc:
            raise click.UsageError(f"{source}: {exc}") from None
    if not isinstance(given, dict):
        raise click.UsageError(f"{source}: expected a JSON object")
    name, config = (given.get("name"), given["config"]) if isinstance(given.get("config"), dict) else (None, given)
    config = dict(config)
    for setting in settings:
        key, separator, value = setting.partition("=")
        if not separator:
            raise click.UsageError(f"{setting}: expected key=value")
        config[key] = value
    return name or config.get("name"), config


@click.group("connector")
@click.option("--url", envvar="CDC_URL", default=DEFAULT_URL, show_default=True, help="REST address of any worker.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object: command, ok, summary, result, error.")
@click.pass_context
def connector(context: click.Context, url: str, as_json: bool) -> None:
    """Connectors: create, watch, control."""
    context.obj = Remote(url, as_json)


@connector.command("list")
@click.pass_obj
def list_(remote: Remote) -> None:
    """All connectors with their states."""
    remote.call("list", "GET", "/connectors?expand=status", _listing)


@connector.command("get")
@click.argument("name")
@click.pass_obj
def get(remote: Remote, name: str) -> None:
    """The config, secrets masked."""
    remote.call("get", "GET", f"/connectors/{_segment(name)}/config", _pretty)


@connector.command("create")
@click.argument("file", required=False, type=click.Path(path_type=Path, allow_dash=True))
@click.option("--name", help="Name, when the file has none.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Sets a key; may be repeated.")
@click.option("--state", type=click.Choice(["running", "paused", "stopped"]), help="Initial state.")
@click.option("--no-live-checks", is_flag=True, help="Do not ask the database before creating.")
@click.pass_obj
def create(
    remote: Remote,
    file: Path | None,
    name: str | None,
    settings: tuple[str, ...],
    state: str | None,
    no_live_checks: bool,
) -> None:
    """Create from FILE (JSON; - is stdin): {"name", "config"} as in Connect, or the flat config alone."""
    found, config = _read_config(file, settings)
    body = {"name": name or found or "", "config": {**config, "name": name} if name else config}
    if state:
        body["initial_state"] = state.upper()
    query = "?validate=false" if no_live_checks else ""
    remote.call("create", "POST", f"/connectors{query}", _created, body)


def _created(content: Any) -> str:
    notes = "".join(f"\n  {note['severity']}: {note['message']}" for note in content.get("notes", ()))
    return f"created {content['name']}{notes}"


@connector.command("status")
@click.argument("name")
@click.pass_obj
def status(remote: Remote, name: str) -> None:
    """States of the connector and its tasks."""
    remote.call("status", "GET", f"/connectors/{_segment(name)}/status", _status)


def _verb(verb: str, method: str, path: str, doc: str, done: str) -> None:
    @connector.command(verb, help=doc)
    @click.argument("name")
    @click.pass_obj
    def command(remote: Remote, name: str) -> None:
        remote.call(verb, method, f"/connectors/{_segment(name)}{path}", lambda _: f"{done} {name}")


_verb("pause", "PUT", "/pause", "Pause: tasks stay where they are and stop reading.", "paused")
_verb("resume", "PUT", "/resume", "Resume a paused or stopped connector.", "resumed")
_verb("stop", "PUT", "/stop", "Stop: give up the tasks, keep config and positions.", "stopped")
_verb("delete", "DELETE", "", "Delete the connector.", "deleted")


@connector.command("restart")
@click.argument("name")
@click.option("--failed", is_flag=True, help="Only what failed.")
@click.option("--task", type=click.IntRange(min=0), help="Only this task.")
@click.pass_obj
def restart(remote: Remote, name: str, failed: bool, task: int | None) -> None:
    """Restart the connector with its tasks, what failed of them, or one task."""
    base = f"/connectors/{_segment(name)}"
    only_failed = "true" if failed else "false"
    path = f"/restart?includeTasks=true&onlyFailed={only_failed}" if task is None else f"/tasks/{task}/restart"
    remote.call("restart", "POST", base + path, lambda _: f"restarting {name}")
