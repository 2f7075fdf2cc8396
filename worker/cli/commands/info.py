"""`cdcworker plugins`, `schemas`, `errors` and `completion`: connectors, schemas, error codes and shell completion."""

from __future__ import annotations

import difflib
import json
from typing import Any

import click
from cdcworker.worker.cli.client.remote import (
    RemoteCluster,
    cluster_options,
    command_name,
    json_option,
    remote_of,
    segment,
    wants_json,
)
from cdcworker.worker.cli.commands.context import tell
from cdcworker.worker.cli.render.output import EXIT_OF_KIND, EXIT_RUNTIME, CliError, FoldedText, TextTable, counted

SHELLS = ("bash", "zsh", "fish")
COMPLETE_VARIABLE = "_CDCWORKER_COMPLETE"
KINDS = {
    "transient": "passes by itself: it is tried again, at growing distances",
    "config": "somebody has to change a setting, a right or a request",
    "data": "a value cannot be handled; nothing after it is handed on",
    "fenced": "another owner exists; this one ends quietly",
    "environment": "a part outside is missing or not as it must be",
    "internal": "an error of the program itself",
}


@click.command("plugins")
@click.argument("name", required=False)
@click.option("--all", "everything", is_flag=True, help="Converters and transforms too.")
@cluster_options
def plugins(name: str | None, everything: bool) -> None:
    """The connectors that the cluster knows, or the configuration keys of one of them, a converter or a transform."""
    remote = remote_of(click.get_current_context())
    if name is None:
        remote.call("GET", f"/connector-plugins?connectorsOnly={'false' if everything else 'true'}", _plugins)
    else:
        remote.call("GET", f"/connector-plugins/{segment(name)}/config", _keys)


def _plugins(content: Any) -> TextTable:
    return TextTable(
        ("CLASS", "TYPE", "VERSION"), [(item["class"], item["type"], item["version"]) for item in content], of="plugin"
    )


def _keys(content: Any) -> TextTable:
    rows = []
    for item in content:
        default = "required" if item["required"] else item["default_value"]
        rows.append(
            (item["name"], item["type"].lower(), "-" if default is None else str(default), item["documentation"])
        )
    return TextTable(("KEY", "TYPE", "DEFAULT", "MEANING"), rows, of="key")


@click.command("schemas")
@click.argument("subject", required=False)
@click.option("--version", "number", type=click.IntRange(min=1), help="Show this version's schema.")
@cluster_options
def schemas(subject: str | None, number: int | None) -> None:
    """The subjects of the schema log, the versions of SUBJECT, or one of its schemas."""
    remote = remote_of(click.get_current_context())
    if subject is None:
        if number is not None:
            raise click.UsageError("--version needs a SUBJECT")
        remote.call("GET", "/subjects", _subjects)
    elif number is not None:
        remote.call("GET", f"/subjects/{segment(subject)}/versions/{number}", _schema)
    else:
        remote.tell(_versions(remote, subject), _versions_table)


def _subjects(content: Any) -> FoldedText:
    return FoldedText(counted(len(content), "subject"), "\n".join(content) or "no subjects yet")


def _versions(remote: RemoteCluster, subject: str) -> list[dict[str, Any]]:
    base = f"/subjects/{segment(subject)}/versions"
    out = []
    for number in remote.get(base):
        version = remote.get(f"{base}/{number}")
        fields = json.loads(version["schema"])
        names = _fields(fields)
        out.append({"version": number, "id": version["id"], "fields": names})
    return out


def _fields(schema: Any) -> list[str]:
    """Returns the columns of a key, or of the rows in an envelope."""
    if not isinstance(schema, dict):
        return []
    for field in schema.get("fields", ()):
        if field["name"] in ("before", "after"):
            for branch in field["type"] if isinstance(field["type"], list) else [field["type"]]:
                if isinstance(branch, dict) and branch.get("fields"):
                    return [inner["name"] for inner in branch["fields"]]
    return [field["name"] for field in schema.get("fields", ())]


def _versions_table(content: Any) -> TextTable:
    rows = [(str(item["version"]), str(item["id"]), " ".join(item["fields"])) for item in content]
    return TextTable(("VERSION", "ID", "FIELDS"), rows, of="version")


def _schema(content: Any) -> FoldedText:
    text = json.dumps(json.loads(content["schema"]), ensure_ascii=False, indent=2)
    return FoldedText(f"version {content['version']} of {content['subject']}, id {content['id']}", text)


@click.command("errors")
@click.argument("code", required=False)
@json_option
def errors(code: str | None) -> None:
    """The manual of error codes: what CODE means, what was kept safe and what to do. Works without a cluster."""
    from cdcworker.schemas.errors import CODES
    from cdcworker.worker.generators.reference import import_all
    from cdcworker.worker.generators.runbook import kept

    import_all()
    if code is None:
        known = sorted(CODES.values(), key=lambda item: item.name)
        content = [{"code": item.name, "kind": item.kind, "meaning": item.title} for item in known]
        tell(
            content,
            TextTable(("CODE", "KIND", "MEANING"), [(item.name, item.kind, item.title) for item in known], of="code"),
        )
        return
    entry = CODES.get(code)
    if entry is None:
        here = click.get_current_context()
        near = difflib.get_close_matches(code, CODES, 3, 0.5)
        suggestion = f"Did you mean {', '.join(near)}?" if near else "`cdcworker errors` lists all codes."
        error = {"code": "cli.usage", "message": f"there is no code {code}", "suggestion": suggestion}
        raise CliError(command_name(here), error, 2, as_json=wants_json(here))
    page = {
        "code": entry.name,
        "kind": entry.kind,
        "meaning": entry.title,
        "cause": KINDS[entry.kind],
        "kept": kept(entry),
        "suggestion": entry.hint,
        "exit": EXIT_OF_KIND.get(entry.kind, EXIT_RUNTIME),
    }
    tell(page, FoldedText(f"{entry.name}: {entry.title}", _page(page)))


def _page(page: dict[str, Any]) -> str:
    return "\n".join(
        (
            page["code"],
            f"  means      {page['meaning']}",
            f"  kind       {page['kind']}: {page['cause']}",
            f"  kept safe  {page['kept']}",
            f"  what to do {page['suggestion'] or '-'}",
            f"  exit code  {page['exit']} where a command ends with it",
        )
    )


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
@json_option
def completion(shell: str) -> None:
    """The script that teaches SHELL to complete commands, options and names of connectors.

    \b
    bash   source <(cdcworker completion bash)
    zsh    source <(cdcworker completion zsh)
    fish   cdcworker completion fish > ~/.config/fish/completions/cdcworker.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    root = click.get_current_context().find_root().command
    script = kind(root, {}, "cdcworker", COMPLETE_VARIABLE)
    # Not `source()`: for bash that starts a bash to ask for its version.
    text = script.source_template % script.source_vars()
    tell({"shell": shell, "script": text}, FoldedText(f"completion for {shell}", text))
