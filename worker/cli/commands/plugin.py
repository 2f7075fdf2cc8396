"""`cdcworker plugin`: writes a new plugin, and tests one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click
from cdcworker.worker.cli.client.remote import json_option, wants_json
from cdcworker.worker.cli.render.output import EXIT_RUNTIME


@click.group("plugin")
def plugin() -> None:
    """Connectors and transforms of your own."""


@plugin.command("new")
@click.argument("name")
@click.option("--kind", type=click.Choice(["source", "sink", "transform"]), required=True)
@click.option(
    "--dir",
    "parent",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    help="Where its folder is made.",
)
@json_option
@click.pass_context
def new(context: click.Context, name: str, kind: str, parent: Path) -> None:
    """Write the distribution NAME: a plugin that works, what it is tested with, and a test."""
    from cdcworker.worker.conformance.template import KINDS, write_plugin

    folder = write_plugin(name, next(each for each in KINDS if each == kind), parent)
    if wants_json(context):
        click.echo(json.dumps({"folder": str(folder)}))
        return
    click.echo(f"wrote {folder}: pip install -e {folder}; cdcworker plugin test {name}")


@plugin.command("test")
@click.argument("distribution")
@click.option("--quick", is_flag=True, help="Only what needs no Kafka: no process is killed.")
@click.option("--dir", "folder", type=click.Path(file_okay=False, path_type=Path), help="Folder for the data (empty).")
@json_option
@click.pass_context
def test(context: click.Context, distribution: str, quick: bool, folder: Path | None) -> None:
    """Run the conformance kit against the plugins of an installed DISTRIBUTION, with a Kafka of its own.

    Exit code 1 if it finds a problem.
    """
    from cdcworker.worker.conformance.distribution import checked_distribution
    from cdcworker.worker.devstack.scratch import scratch_folder
    from cdcworker.worker.devstack.signals import interruptible

    results: list[dict[str, str]] = []
    as_json, problems = wants_json(context), 0
    with interruptible(), scratch_folder(folder) as scratch:
        for name, found in checked_distribution(distribution, scratch, with_kafka=not quick):
            problems += bool(found.problem)
            results.append({"plugin": name, "check": found.name, "problem": found.problem})
            if as_json:
                continue
            click.echo(f"{'FAILED' if found.problem else 'ok    '} {name}: {found.name}")
            for line in found.problem.splitlines():
                click.echo(f"         {line}")
    if as_json:
        click.echo(json.dumps(results))
    else:
        click.echo(f"{problems} problems" if problems else "no problem found")
    sys.exit(EXIT_RUNTIME if problems else 0)
