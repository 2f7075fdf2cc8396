"""`cdcworker connector`: connectors over the REST API of any worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from cdcworker.worker.cli.client.connector_files import read_config, read_named
from cdcworker.worker.cli.client.connector_requests import (
    live_query,
    path_of,
    previewed,
    validated,
    with_secrets_compared,
)
from cdcworker.worker.cli.client.remote import (
    KEY_HEADER,
    RemoteCluster,
    cluster_options,
    complete_names,
    remote_command,
)
from cdcworker.worker.cli.commands.connectors.offsets import offsets
from cdcworker.worker.cli.render import connector_texts
from cdcworker.worker.cli.render.output import EXIT_VALIDATION, FoldedText, counted, pretty

NAME = click.argument("name", shell_complete=complete_names)
FILE = click.argument("file", type=click.Path(path_type=Path, allow_dash=True))
NAME_OPTION = click.option("--name", help="Name, when the file has none.")
SET = click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Sets a key; may be repeated.")
DRY_RUN = click.option("--dry-run", is_flag=True, help="Show what would be done, change nothing.")
NO_LIVE = click.option("--no-live-checks", is_flag=True, help="Do not ask the database first.")


@click.group("connector")
@cluster_options
def connector() -> None:
    """Connectors: create, watch, control."""


connector.add_command(offsets)


@remote_command(connector, "list")
def list_(remote: RemoteCluster) -> None:
    """All connectors with their states."""
    remote.call("GET", "/connectors?expand=status", connector_texts.listing)


@remote_command(connector, "get")
@NAME
def get(remote: RemoteCluster, name: str) -> None:
    """The config, secrets masked."""
    remote.call(
        "GET",
        f"{path_of(name)}/config",
        lambda found: FoldedText(f"{name}: {counted(len(found), 'key')}", pretty(found)),
    )


@remote_command(connector, "status")
@NAME
def status(remote: RemoteCluster, name: str) -> None:
    """States of the connector and its tasks."""
    remote.call("GET", f"{path_of(name)}/status", connector_texts.status)


@remote_command(connector, "describe")
@NAME
def describe(remote: RemoteCluster, name: str) -> None:
    """Everything about one connector: states, errors and what they ask for, numbers, topics, config."""
    state = remote.get(f"{path_of(name)}/status")
    tasks = [task for task in remote.get("/v1/cluster")["tasks"] if task["connector"] == name]
    content = {"status": state, "tasks": tasks, "topics": _topics(remote, name)}
    remote.tell({**content, "config": remote.get(f"{path_of(name)}/config")}, connector_texts.description)


def _topics(remote: RemoteCluster, name: str) -> list[str] | None:
    """None where the worker's settings say that topics in use are not tracked."""
    from cdcworker.worker.cli.render.output import CliError

    try:
        answer = remote.get(f"{path_of(name)}/topics")
    except CliError as error:
        if error.error.get("error_code") == 403:
            return None
        raise
    return list(answer[name]["topics"])


@remote_command(connector, "create")
@click.argument("file", required=False, type=click.Path(path_type=Path, allow_dash=True))
@NAME_OPTION
@SET
@click.option("--state", type=click.Choice(["running", "paused", "stopped"]), help="Initial state.")
@DRY_RUN
@NO_LIVE
def create(
    remote: RemoteCluster,
    file: Path | None,
    name: str | None,
    settings: tuple[str, ...],
    state: str | None,
    dry_run: bool,
    no_live_checks: bool,
) -> None:
    """Create from FILE (JSON; - is stdin): {"name", "config"} as in Connect, or the flat config alone."""
    import uuid

    named, config = read_config(file, settings)
    body = {"name": name or named or "", "config": {**config, "name": name} if name else config}
    if state:
        body["initial_state"] = state.upper()
    path = f"/connectors{live_query(no_live_checks)}"
    if dry_run:
        change(remote, "POST", path, connector_texts.created, dry_run=True, body=body)
    else:
        # By its key the cluster knows the request again when a worker ends between taking and answering it.
        remote.call("POST", path, connector_texts.created, body, {KEY_HEADER: uuid.uuid4().hex})


@remote_command(connector, "apply")
@FILE
@NAME_OPTION
@SET
@click.option("--dry-run", is_flag=True, help="Show and validate, change nothing.")
@NO_LIVE
def apply(
    remote: RemoteCluster,
    file: Path,
    name: str | None,
    settings: tuple[str, ...],
    dry_run: bool,
    no_live_checks: bool,
) -> None:
    """Make the connector of FILE be as FILE says: created, changed, or left alone.

    Whoever changes it at the same moment is not overwritten: then it ends with exit code 2.
    """
    chosen, config = read_named(file, name, settings)
    present, etag = _present(remote, chosen)
    changes = with_secrets_compared(remote, chosen, config, connector_texts.differences(present, config))
    if dry_run:
        report = validated(remote, config, no_live_checks=no_live_checks)
        result = {**_effect(chosen, present, changes, done=False), "findings": report["findings"]}
        if not report["error_count"]:
            result["tasks"] = previewed(remote, chosen, config)["tasks"]
        remote.tell(result, _dry_text, ok=not report["error_count"])
        raise SystemExit(EXIT_VALIDATION if report["error_count"] else 0)
    if present is not None and not changes:
        remote.tell(_effect(chosen, present, changes, done=True), _effect_text)
        return
    headers = {"If-Match": etag} if etag else {}
    answer = remote.ask("PUT", f"{path_of(chosen)}/config{live_query(no_live_checks)}", config, headers)
    result = _effect(chosen, present, changes, done=True)
    remote.tell({**result, "notes": answer.content.get("notes", [])}, _effect_text)


def _effect(name: str, present: Any, changes: list[dict[str, Any]], *, done: bool) -> dict[str, Any]:
    effect = "created" if present is None else "changed" if changes else "unchanged"
    return {"name": name, "effect": effect, "done": done, "changes": connector_texts.hidden(changes)}


def _effect_text(content: Any) -> str:
    lines = connector_texts.indented(connector_texts.difference_lines(content["changes"])) if content["changes"] else ""
    return f"{content['effect']} {content['name']}" + (f"\n{lines}" if lines else "") + connector_texts.notes(content)


def _dry_text(content: Any) -> str:
    errors = sum(item["severity"] == "error" for item in content["findings"])
    report = {"name": content["name"], "error_count": errors, "findings": content["findings"]}
    tasks = (
        f"\ntasks: {connector_texts.task_moves(content['tasks']) or 'none is touched'}" if "tasks" in content else ""
    )
    return f"would be {_effect_text(content)}{tasks}\n{connector_texts.validation(report)}"


def _present(remote: RemoteCluster, name: str) -> tuple[dict[str, str] | None, str]:
    """Returns the running config with its ETag, None for a connector that does not exist."""
    from cdcworker.worker.cli.render.output import CliError

    try:
        answer = remote.ask("GET", f"{path_of(name)}/config")
    except CliError as error:
        if error.error.get("error_code") == 404:
            return None, ""
        raise
    return answer.content, answer.headers.get("etag", "")


@remote_command(connector, "validate")
@FILE
@NAME_OPTION
@SET
@NO_LIVE
def validate(
    remote: RemoteCluster, file: Path, name: str | None, settings: tuple[str, ...], no_live_checks: bool
) -> None:
    """Check FILE as a worker would before it starts it, the database included. Exit code 2 if it would be refused."""
    named, config = read_config(file, settings)
    given = {**config, "name": name or named} if name or named else config
    report = validated(remote, given, no_live_checks=no_live_checks)
    remote.tell(report, connector_texts.validation, ok=not report["error_count"])
    raise SystemExit(EXIT_VALIDATION if report["error_count"] else 0)


@remote_command(connector, "diff")
@FILE
@NAME_OPTION
@SET
@click.option("--exit-code", is_flag=True, help="Exit code 1 if there is a difference.")
def diff(remote: RemoteCluster, file: Path, name: str | None, settings: tuple[str, ...], exit_code: bool) -> None:
    """What `apply` would change of the running connector."""
    chosen, config = read_named(file, name, settings)
    present, _ = _present(remote, chosen)
    changes = with_secrets_compared(remote, chosen, config, connector_texts.differences(present, config))
    remote.tell({"name": chosen, "exists": present is not None, "changes": connector_texts.hidden(changes)}, _diff_text)
    raise SystemExit(1 if exit_code and (changes or present is None) else 0)


def _diff_text(content: Any) -> FoldedText:
    head = "" if content["exists"] else f"{content['name']} does not exist\n"
    count = len(content["changes"])
    differences = f"{counted(count, 'key')} differ{'s' * (count == 1)}" if count else "no difference"
    summary = f"{content['name']}: {differences}" if content["exists"] else head.strip()
    return FoldedText(summary, head + connector_texts.difference_lines(content["changes"]))


def change(remote: RemoteCluster, method: str, path: str, text: Any, *, dry_run: bool, body: Any = None) -> None:
    """Sends a change, or shows what it would do."""
    if dry_run:
        joint = "&" if "?" in path else "?"
        remote.call(method, f"{path}{joint}dry_run=true", connector_texts.dry_run, body)
    else:
        remote.call(method, path, text, body)


def _verb(verb: str, method: str, path: str, doc: str, done: str) -> None:
    @NAME
    @DRY_RUN
    def command(remote: RemoteCluster, name: str, dry_run: bool) -> None:
        change(remote, method, path_of(name) + path, lambda _: f"{done} {name}", dry_run=dry_run)

    remote_command(connector, verb, help=doc)(command)


_verb("pause", "PUT", "/pause", "Pause: tasks stay where they are and stop reading.", "paused")
_verb("resume", "PUT", "/resume", "Resume a paused or stopped connector.", "resumed")
_verb("stop", "PUT", "/stop", "Stop: give up the tasks, keep config and positions.", "stopped")


@remote_command(connector, "delete")
@NAME
@click.option(
    "--drop", multiple=True, type=click.Choice(["slot", "publication"]), help="Also drop this in the source's database."
)
@DRY_RUN
def delete(remote: RemoteCluster, name: str, drop: tuple[str, ...], dry_run: bool) -> None:
    """Delete the connector. Its topics and positions stay, and without --drop its slot and publication."""
    path = path_of(name) + (f"?drop={','.join(dict.fromkeys(drop))}" if drop else "")
    if dry_run:
        change(remote, "DELETE", path, lambda _: "", dry_run=True)
        return
    answer = remote.ask("DELETE", path)
    if drop and answer.content is None:
        remote.note("nothing was dropped: the leader is a worker of an earlier version")
    for item in (answer.content or {}).get("refused", ()):
        remote.note(f"not dropped: {item['kind']} {item['name']}: {item['error']['message']}")
    remote.tell(answer.content, lambda _: f"deleted {name}")
    if left := connector_texts.left_line(answer.headers.get("x-cdc-left", "")):
        remote.note(left)


@remote_command(connector, "restart")
@NAME
@click.option("--failed", is_flag=True, help="Only what failed.")
@click.option("--task", type=click.IntRange(min=0), help="Only this task.")
@DRY_RUN
def restart(remote: RemoteCluster, name: str, failed: bool, task: int | None, dry_run: bool) -> None:
    """Restart the connector with its tasks, what failed of them, or one task."""
    only_failed = "true" if failed else "false"
    path = f"/restart?includeTasks=true&onlyFailed={only_failed}" if task is None else f"/tasks/{task}/restart"
    change(remote, "POST", path_of(name) + path, lambda _: f"restarting {name}", dry_run=dry_run)
