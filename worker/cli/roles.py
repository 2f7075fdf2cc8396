"""`cdcworker roles`: the least that a source, a sink and the workers themselves need, as scripts for administrators."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import click
from cdcworker.connectors.postgres.fixes import Flavour
from cdcworker.connectors.scripts import Step, as_text
from cdcworker.worker.cli.output import envelope
from cdcworker.worker.cli.remote import command_name, json_option, wants_json

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group("roles")
def roles() -> None:
    """The least rights, as scripts to read and run: SQL for databases, Kafka's own commands for ACLs.

    Nothing is connected to, and no script holds a password. Each may be run again, with more tables or schemas too.
    """


@roles.command("source")
@click.option("--role", required=True, help="database.user of the connector.")
@click.option("--database", required=True, help="database.dbname.")
@click.option("--table", "tables", multiple=True, required=True, metavar="SCHEMA.TABLE", help="May be repeated.")
@click.option("--publication", default="dbz_publication", show_default=True, help="publication.name.")
@click.option("--slots", type=click.IntRange(1), default=1, show_default=True, help="slot.count.")
@click.option("--via-root", is_flag=True, help="With publish.via.partition.root=true.")
@click.option(
    "--flavour", type=click.Choice(get_args(Flavour)), default="self-managed", show_default=True,
    help="Whose PostgreSQL it is.",
)  # fmt: skip
@json_option
def source(
    role: str, database: str, tables: tuple[str, ...], publication: str, slots: int, via_root: bool, flavour: Flavour
) -> None:
    """SQL for the owner of the source's tables."""
    from cdcworker.connectors.postgres.roles import SourceRole, source_script

    names = [_table(name) for name in tables]
    script = source_script(SourceRole(role, database, names, publication, via_root, flavour, slots))
    _show(f"The role of a source over {len(names)} tables, by the owner of the tables, in {database!r}", script)


@roles.command("sink")
@click.option("--role", required=True, help="warehouse.user of the connector.")
@click.option("--database", required=True, help="warehouse.dbname.")
@click.option(
    "--schema", "schemas", multiple=True, required=True, metavar="NAME",
    help="Where tables go: warehouse.schema, or the schemas of the source. May be repeated.",
)  # fmt: skip
@json_option
def sink(role: str, database: str, schemas: tuple[str, ...]) -> None:
    """SQL for the owner of a PostgreSQL warehouse."""
    from cdcworker.connectors.spark.roles import SinkRole, sink_script

    script = sink_script(SinkRole(role, database, schemas))
    _show(f"The role of a sink into {', '.join(schemas)}, by the warehouse's owner, in {database!r}", script)


@roles.command("kafka")
@click.option("--principal", required=True, metavar="User:NAME", help="The workers' Kafka user.")
@click.option("--config", "path", type=FILE, required=True, help="worker.properties or worker.yaml.")
@click.option("--source", "writes", multiple=True, metavar="PREFIX", help="topic.prefix of a source. May be repeated.")
@click.option(
    "--sink", "reads", multiple=True, metavar="BEGINNING", help="Of the topics that a sink reads. May be repeated."
)
@click.option("--old-brokers", is_flag=True, help="Brokers before Kafka 2.8.")
@json_option
def kafka(principal: str, path: Path, writes: tuple[str, ...], reads: tuple[str, ...], old_brokers: bool) -> None:
    """ACLs of the workers' Kafka user, for kafka-acls.sh."""
    from cdcworker.coordinator.kafka_topics import TopicNames
    from cdcworker.worker.config import load
    from cdcworker.worker.kafka_acls import Wanted, acls, as_commands

    config, _ = load(path)
    topics = TopicNames.of_group(config.group_id, config.properties)
    audit = config.properties.get("audit.topic", "")
    found = acls(Wanted(config.group_id, topics, writes, reads, audit, old_brokers))
    context = click.get_current_context()
    if wants_json(context):
        rows = [
            {"resource": a.resource, "name": a.name, "prefixed": a.prefixed, "operations": list(a.operations)}
            for a in found
        ]
        click.echo(envelope(command_name(context), {"principal": principal, "acls": rows}))
    else:
        click.echo(as_commands(found, principal, config.kafka["bootstrap.servers"]), nl=False)


def _table(name: str) -> tuple[str, str]:
    schema, dot, table = name.partition(".")
    if not (schema and dot and table):
        raise click.UsageError(f"{name}: a table is named with its schema, public.orders")
    return schema, table


def _show(title: str, steps: list[Step]) -> None:
    context = click.get_current_context()
    if wants_json(context):
        content = [{"why": step.why, "statements": list(step.statements)} for step in steps]
        click.echo(envelope(command_name(context), content))
    else:
        click.echo(as_text(title, steps), nl=False)
