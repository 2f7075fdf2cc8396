"""`cdcworker plan`, `apply` and `export`: a folder of connectors and a cluster."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import click
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.worker.cli.client.connector_files import read_object
from cdcworker.worker.cli.client.remote import RemoteCluster, complete_names, remote_command
from cdcworker.worker.cli.connector_sets import cluster, texts
from cdcworker.worker.cli.connector_sets.files import WantedSet, read_set, write_connection, write_connector
from cdcworker.worker.cli.connector_sets.plan import (
    FORM,
    SetPlan,
    as_json,
    differing,
    fingerprint,
    same_fingerprint,
)
from cdcworker.worker.cli.render.output import EXIT_RUNTIME, EXIT_VALIDATION

PLAN_STALE = declare(
    "cli.plan_stale",
    "config",
    "The plan is not true any more",
    "Make a new plan with `cdcworker plan`, look at it, and apply that one.",
)
SET_REFUSED = declare(
    "cli.set_refused",
    "config",
    "Connectors of the set are not valid; nothing was changed",
    "`cdcworker plan` shows what is wrong with each.",
)
PLACE = click.argument("place", metavar="DIR", type=click.Path(path_type=Path, exists=True))
LABEL = click.option("--label", metavar="KEY=VALUE", help="Put this label on each; it bounds what --prune deletes.")
PRUNE = click.option("--prune", is_flag=True, help="Delete connectors with the label that are not in DIR.")
NO_LIVE = click.option("--no-live-checks", is_flag=True, help="Do not ask the databases first.")
SALT_BYTES = 16


@remote_command(None, "plan")
@PLACE
@LABEL
@PRUNE
@NO_LIVE
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Keep the plan for `apply --plan`.")
@click.option("--exit-code", is_flag=True, help="Exit code 1 if there is anything to do.")
def plan(
    remote: RemoteCluster,
    place: Path,
    label: str | None,
    prune: bool,
    no_live_checks: bool,
    out: Path | None,
    exit_code: bool,
) -> None:
    """What `apply` would do: connectors created, changed, restarted, read again and deleted, with what validation finds.

    DIR is a folder of JSON and YAML files, or one file. Nothing is changed. Exit code 2 if one would be refused.
    """
    chosen = _label(label, prune=prune)
    wanted = read_set(place, dict([chosen]) if chosen[0] else {})
    found = cluster.make_plan(remote, wanted, chosen, prune=prune, no_live_checks=no_live_checks)
    if out is not None:
        _keep(out, found, wanted)
    remote.tell(as_json(found), texts.plan_text, ok=not found.refused)
    sys.exit(EXIT_VALIDATION if found.refused else EXIT_RUNTIME if exit_code and found.steps else 0)


@remote_command(None, "apply")
@PLACE
@LABEL
@PRUNE
@NO_LIVE
@click.option("--plan", "kept", type=click.Path(path_type=Path, exists=True), help="Do just what this plan says.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def apply(
    remote: RemoteCluster,
    place: Path,
    label: str | None,
    prune: bool,
    no_live_checks: bool,
    kept: Path | None,
    yes: bool,
) -> None:
    """Make the cluster's connectors be as the files of DIR say; what is so already is left alone.

    It shows the plan and asks. With --plan it carries out a plan that `plan --out` has kept, if that is still true.
    Whoever changes a connector at the same moment is not overwritten.
    """
    chosen = _label(label, prune=prune)
    wanted = read_set(place, dict([chosen]) if chosen[0] else {})
    found = cluster.make_plan(remote, wanted, chosen, prune=prune, no_live_checks=no_live_checks)
    if kept is not None:
        _check_kept(remote, kept, found, wanted)
    if found.refused:
        remote.note(_text_of(found))
        remote.fail(CdcError(SET_REFUSED, f"not valid: {', '.join(found.refused)}"))
    if found.steps and kept is None and not yes:
        _confirm(remote, found)
    steps = []
    for step, error in cluster.carry_out(remote, found, wanted, no_live_checks=no_live_checks):
        steps.append({"name": step.name, "effect": step.effect, "error": error and dict(error.error)})
    failed = any(one["error"] for one in steps)
    content = {**as_json(found), "steps": steps, "skipped": len(found.steps) - len(steps)}
    remote.tell(content, texts.outcome_text, ok=not failed)
    sys.exit(EXIT_RUNTIME if failed else 0)


@remote_command(None, "")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.argument("names", nargs=-1, shell_complete=complete_names)
def export(remote: RemoteCluster, folder: Path, names: tuple[str, ...]) -> None:
    """Write connectors to files of DIR, one each, as `apply` reads them: all, or those of NAMES.

    Secrets are masked. A mask that is applied to the same cluster keeps the secret that it has.
    """
    found = cluster.exported(remote, names)
    folder.mkdir(parents=True, exist_ok=True)
    shared = [] if names else cluster.exported_connections(remote)
    written = [write_connector(folder, body) for body in found]
    written += [write_connection(folder, body) for body in shared]
    files = [{"file": str(path), "changed": changed} for path, changed in written]
    remote.tell({"folder": str(folder), "files": files, "connections": len(shared)}, texts.export_text)


def _label(text: str | None, *, prune: bool) -> tuple[str, str]:
    if text is None:
        if prune:
            raise click.UsageError("--prune needs --label: without one it would delete what others have made")
        return "", ""
    key, separator, value = text.partition("=")
    if not (key and separator and value):
        raise click.UsageError(f"--label {text}: expected key=value")
    return key, value


def _text_of(found: SetPlan) -> str:
    return str(texts.plan_text(as_json(found)).text)


def _confirm(remote: RemoteCluster, found: SetPlan) -> None:
    if remote.as_json or not sys.stdin.isatty():
        raise click.UsageError("apply asks first: without a terminal it needs --yes or --plan")
    remote.note(_text_of(found))
    click.confirm("Do this?", abort=True, err=True)


def _keep(out: Path, found: SetPlan, wanted: WantedSet) -> None:
    salt = os.urandom(SALT_BYTES)
    kept = {**as_json(found), "salt": salt.hex(), "fingerprint": fingerprint(found, wanted, salt)}
    out.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _check_kept(remote: RemoteCluster, path: Path, found: SetPlan, wanted: WantedSet) -> None:
    """Refuses a kept plan where files, options or cluster have changed since."""
    kept: dict[str, Any] = read_object(path)
    try:
        if kept["form"] != FORM:
            raise click.UsageError(f"{path}: a plan of another version")
        salt, before, others = bytes.fromhex(kept["salt"]), str(kept["fingerprint"]), differing(kept, found)
    except (KeyError, TypeError, ValueError):
        raise click.UsageError(f"{path} is no plan that `cdcworker plan --out` has kept") from None
    if not same_fingerprint(before, fingerprint(found, wanted, salt)):
        what = ", ".join(others) or "the files or the options are others"
        remote.fail(CdcError(PLAN_STALE, f"{path}: the plan is not true any more: {what}; nothing was changed"))
