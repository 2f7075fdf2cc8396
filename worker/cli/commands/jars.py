"""`cdcworker jars`: fetches and verifies the locked Java libraries."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
from cdcworker.connectors.sink_engine.warehouse_kinds import DEFAULT, KINDS
from cdcworker.worker.cli.client.remote import json_option
from cdcworker.worker.cli.commands.context import tell
from cdcworker.worker.cli.render.output import FoldedText

DEFAULT_SECTIONS = ("kafka", "spark")


@click.group("jars")
def jars_group() -> None:
    """The locked Java libraries of the embedded Kafka and of Spark sinks.

    They are kept in $CDC_CACHE_DIR (default ~/.cache/cdcworker), each checked against the SHA-256 in the lock.
    Mirrors: CDC_MAVEN_MIRRORS (comma-separated roots, file:// too), else the first mirror in ~/.m2/settings.xml.
    Proxies: https_proxy, no_proxy or the JVM's own properties in JAVA_TOOL_OPTIONS.
    """


@jars_group.command("fetch")
@click.argument("sections", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every section of the lock.")
@json_option
def fetch(sections: tuple[str, ...], everything: bool) -> None:
    """Fetch what is missing of SECTIONS (default: kafka spark)."""
    from cdcworker.worker.java import jars

    fetched: dict[str, Any] = {}
    lines: list[str] = []
    for name in _chosen(sections, everything):
        files = jars.ensure(name, lambda line: click.echo(line, err=True))
        fetched[name] = {"libraries": len(files), "folder": str(jars.folder(name))}
        lines.append(f"{name}: {len(files)} libraries in {jars.folder(name)}")
    tell(fetched, "\n".join(lines))


@jars_group.command("verify")
@click.argument("sections", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every section of the lock.")
@json_option
def verify(sections: tuple[str, ...], everything: bool) -> None:
    """Compare SECTIONS (default: kafka spark) with the lock; exit code 1 if one is missing or differs."""
    from cdcworker.worker.java import jars

    verified: dict[str, Any] = {}
    lines: list[str] = []
    for name in _chosen(sections, everything):
        findings = jars.verify(name)
        wrong = {finding.jar: finding.state for finding in findings if finding.state != "ok"}
        verified[name] = {"libraries": len(findings), "wrong": wrong}
        lines += [
            f"{name}: {jar} is {'missing' if state == 'missing' else 'not as locked'}" for jar, state in wrong.items()
        ]
        lines.append(f"{name}: {len(findings) - len(wrong)} of {len(findings)} libraries as locked")
    fine = not any(section["wrong"] for section in verified.values())
    tell(verified, FoldedText("all as locked" if fine else "not all as locked", "\n".join(lines)), ok=fine)
    if not fine:
        sys.exit(1)


@jars_group.command("archive")
@click.argument("warehouse", default=DEFAULT, type=click.Choice([kind.name for kind in KINDS]))
@json_option
def archive(warehouse: str) -> None:
    """Make the archive of classes that halves the start of sinks into WAREHOUSE (default: postgres; parquet's is the same).

    A sink makes it by itself after its first start where it can write to $CDC_CACHE_DIR; this is for images and other
    places where it cannot. Starts Spark once and takes about a minute.
    """
    from cdcworker.connectors.spark.runtime.class_archive_run import archive_classes
    from cdcworker.connectors.spark.spark_host import jars_of
    from cdcworker.worker.task.sink_runner import find_machine

    machine = find_machine(jars_of({"warehouse": warehouse}))
    path = archive_classes(machine.java_home, machine.jars, Path(machine.cache_dir))
    size = path.stat().st_size
    tell({"file": str(path), "bytes": size}, f"{path} ({size / 1e6:.0f} MB)")


def _chosen(sections: tuple[str, ...], everything: bool) -> tuple[str, ...]:
    from cdcworker.worker.java import jars

    return tuple(jars.lock()) if everything else sections or DEFAULT_SECTIONS
