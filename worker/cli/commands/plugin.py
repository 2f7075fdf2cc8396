"""`cdcworker plugin`: writes a new plugin, and tests one."""

from __future__ import annotations

import sys
from pathlib import Path

import click
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
def new(name: str, kind: str, parent: Path) -> None:
    """Write the distribution NAME: a plugin that works, what it is tested with, and a test."""
    from cdcworker.worker.conformance.template import KINDS, write_plugin

    folder = write_plugin(name, next(each for each in KINDS if each == kind), parent)
    click.echo(f"wrote {folder}: pip install -e {folder}; cdcworker plugin test {name}")


@plugin.command("test")
@click.argument("distribution")
@click.option("--quick", is_flag=True, help="Only what needs no Kafka: no process is killed.")
@click.option("--dir", "folder", type=click.Path(file_okay=False, path_type=Path), help="Folder for the data (empty).")
def test(distribution: str, quick: bool, folder: Path | None) -> None:
    """Run the conformance kit against the plugins of an installed DISTRIBUTION, with a Kafka of its own.

    Exit code 1 if it finds a problem.
    """
    from cdcworker.worker.conformance.distribution import checked_distribution
    from cdcworker.worker.devstack.scratch import scratch_folder
    from cdcworker.worker.devstack.signals import interruptible

    problems = 0
    with interruptible(), scratch_folder(folder) as scratch:
        for name, found in checked_distribution(distribution, scratch, with_kafka=not quick):
            problems += bool(found.problem)
            click.echo(f"{'FAILED' if found.problem else 'ok    '} {name}: {found.name}")
            for line in found.problem.splitlines():
                click.echo(f"         {line}")
    click.echo(f"{problems} problems" if problems else "no problem found")
    sys.exit(EXIT_RUNTIME if problems else 0)
