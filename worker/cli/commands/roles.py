"""`cdcworker roles`: the least that a source, a sink and the workers themselves need, as scripts for administrators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
from cdcworker.connectors.api.abilities import RoleOption, RoleRequest, RolesOfServers, ScriptsRoles
from cdcworker.connectors.registry.names import plugins
from cdcworker.connectors.sql_script import ScriptStep, as_text
from cdcworker.worker.cli.client.remote import command_name, json_option, wants_json
from cdcworker.worker.cli.render.output import envelope

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
SIDES: Final[Mapping[str, str]] = {
    "source": "Print the script for the owner of the source's tables.",
    "sink": "Print the script for the owner of a sink's warehouse.",
}
_TABLE: Final = click.Option(
    ["--table", "tables"], multiple=True, required=True, metavar="SCHEMA.TABLE", help="May be repeated."
)


class RolesGroup(click.Group):
    """Has a command for each kind of connector besides its own ones. Their options are those of the connectors that write
    scripts of roles, which are imported when such a command is looked at."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *SIDES])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return script_command(cmd_name) if cmd_name in SIDES else super().get_command(ctx, cmd_name)


@click.group("roles", cls=RolesGroup)
def roles() -> None:
    """The least rights, as scripts to read and run: SQL for databases, Kafka's own commands for ACLs.

    Nothing is connected to, and no script holds a password. Each may be run again, with more tables or schemas too.
    """


def script_command(side: str) -> click.Command:
    """Returns the command that prints the role script of a source or a sink."""
    connectors = _connectors(side)
    names = tuple(connectors)
    prefix = "database" if side == "source" else "warehouse"
    options = dict.fromkeys(option for connector in connectors.values() for option in connector.role_options())
    params: list[click.Parameter] = [
        click.Option(["--connector"], type=click.Choice(names), default=names[0], show_default=True, help="Its name."),
        click.Option(["--role"], required=True, help=f"{prefix}.user of the connector."),
        click.Option(
            ["--database"], default="", help=f"{prefix}.dbname. Not of a server whose roles belong to no database."
        ),
        *([_TABLE] if side == "source" else []),
        *(_option(option) for option in options),
    ]
    command = click.Command(side, callback=partial(_print_script, side), params=params, help=SIDES[side])
    written: click.Command = json_option(command)
    return written


def _connectors(side: str) -> dict[str, type[ScriptsRoles]]:
    loaded = {plugin.name: plugin.load() for plugin in plugins() if plugin.kind == side}
    return {name: connector for name, connector in loaded.items() if issubclass(connector, ScriptsRoles)}


def _option(option: RoleOption) -> click.Option:
    if isinstance(option.default, bool):
        return click.Option([option.flag, option.name], is_flag=True, default=option.default, help=option.doc)
    value_type: click.ParamType[Any] = click.STRING
    if option.choices:
        value_type = click.Choice(option.choices)
    elif isinstance(option.default, int):
        value_type = click.IntRange(1)
    return click.Option(
        [option.flag, option.name],
        type=value_type,
        required=option.default is None,
        default=option.default,
        show_default=option.default is not None,
        multiple=option.repeated,
        metavar=option.placeholder,
        help=option.doc + (" May be repeated." if option.repeated else ""),
    )


def _print_script(
    side: str, connector: str, role: str, database: str = "", tables: Sequence[str] = (), **options: Any
) -> None:
    written = _connectors(side)[connector]
    if not database and not isinstance(written, RolesOfServers):
        raise click.UsageError("Missing option '--database'.")
    known = {option.name for option in written.role_options()}
    paths = [_table(name) for name in tables]
    request = RoleRequest(role, database, paths, {name: value for name, value in options.items() if name in known})
    who, owned = (f"a source over {len(paths)} tables", "tables") if side == "source" else ("a sink", "warehouse")
    where = f", in {database!r}" if database else ""
    _show(f"The role of {who}, by the owner of the {owned}{where}", written.role_script(request))


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
    from cdcworker.coordinator.kafka.internal_topics import TopicNames
    from cdcworker.worker.config.alert_properties import alerts_topic
    from cdcworker.worker.config.worker_properties import load
    from cdcworker.worker.generators.kafka_acls import ConnectorAcls, acls, as_commands

    config, _ = load(path)
    topics = TopicNames.of_group(config.group_id, config.properties)
    audit = config.properties.get("audit.topic", "")
    found = acls(
        ConnectorAcls(
            config.group_id,
            topics,
            writes,
            reads,
            audit=audit,
            alerts=alerts_topic(config.values, config.group_id),
            old_brokers=old_brokers,
        )
    )
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


def _show(title: str, steps: list[ScriptStep]) -> None:
    context = click.get_current_context()
    if wants_json(context):
        content = [{"why": step.why, "statements": list(step.statements)} for step in steps]
        click.echo(envelope(command_name(context), content))
    else:
        click.echo(as_text(title, steps), nl=False)
