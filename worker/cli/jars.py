"""`cdcworker jars`: fetch and verify the locked Java libraries."""

from __future__ import annotations

import sys

import click

DEFAULT_SECTIONS = ("kafka", "spark")


@click.group("jars")
def jars() -> None:
    """The locked Java libraries of the embedded Kafka and of Spark sinks.

    They are kept in $CDC_CACHE_DIR (default ~/.cache/cdcworker), each checked against the SHA-256 in the lock.
    Mirrors: CDC_MAVEN_MIRRORS (comma-separated roots, file:// too), else the first mirror in ~/.m2/settings.xml.
    Proxies: https_proxy, no_proxy or the JVM's own properties in JAVA_TOOL_OPTIONS.
    """


@jars.command("fetch")
@click.argument("sections", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every section of the lock.")
def fetch(sections: tuple[str, ...], everything: bool) -> None:
    """Fetch what is missing of SECTIONS (default: kafka spark)."""
    from cdcworker.worker.devstack import jars as store

    for name in _chosen(sections, everything):
        files = store.ensure(name, lambda line: click.echo(line, err=True))
        click.echo(f"{name}: {len(files)} libraries in {store.folder(name)}")


@jars.command("verify")
@click.argument("sections", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every section of the lock.")
def verify(sections: tuple[str, ...], everything: bool) -> None:
    """Compare SECTIONS (default: kafka spark) with the lock; exit code 1 if one is missing or differs."""
    from cdcworker.worker.devstack import jars as store

    wrong = 0
    for name in _chosen(sections, everything):
        findings = store.verify(name)
        for finding in findings:
            if finding.state != "ok":
                wrong += 1
                click.echo(f"{name}: {finding.jar} is {'missing' if finding.state == 'missing' else 'not as locked'}")
        click.echo(f"{name}: {sum(f.state == 'ok' for f in findings)} of {len(findings)} libraries as locked")
    if wrong:
        sys.exit(1)


def _chosen(sections: tuple[str, ...], everything: bool) -> tuple[str, ...]:
    from cdcworker.worker.devstack import jars as store

    return tuple(store.lock()) if everything else sections or DEFAULT_SECTIONS
