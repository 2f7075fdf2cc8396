"""`cdcworker import` and `export debezium`: a connector moves here from Kafka Connect, and back."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import click
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.worker.cli.client.connector_files import read_config
from cdcworker.worker.cli.client.remote import RemoteCluster, cluster_options, complete_names, remote_command
from cdcworker.worker.cli.commands.connectors import sets
from cdcworker.worker.cli.render.output import EXIT_VALIDATION
from cdcworker.worker.cli.takeover import steps, texts
from cdcworker.worker.cli.takeover.debezium_config import taken
from cdcworker.worker.cli.takeover.former_connector import (
    ConnectOffsetsTopic,
    FormerConnector,
    WrittenConnector,
    running,
)
from cdcworker.worker.cli.takeover.kafka_connect import KafkaConnect
from cdcworker.worker.cli.takeover.sink_config import taken_sink
from cdcworker.worker.cli.takeover.taken_config import TakenConfig
from cdcworker.worker.config.worker_properties import read_properties

TAKEOVER_REFUSED: Final = declare(
    "cli.takeover_refused",
    "config",
    "The connector cannot be taken over as it is; nothing was changed",
    "The same command with --dry-run shows what is in the way, and what to do.",
)
VARIABLE: Final = "CDC_CONNECT_PASSWORD"
CONNECT = click.option("--connect", metavar="URL", help="REST address of a worker of Kafka Connect.")
CONNECT_USER = click.option("--connect-user", metavar="NAME", help=f"Its user; the password is in {VARIABLE}.")
FOLDER: Final = "DIR"
"""Stands in lists of commands for any folder."""
FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.group("import")
@cluster_options
def import_() -> None:
    """Take over connectors of others."""


_MOVE: Final = (
    CONNECT,
    CONNECT_USER,
    click.option("--connector", metavar="NAME", help="Its name there; not needed where there is only one."),
    click.option("--files", type=FILE, help="Its config in a file, in place of --connect; it has to be stopped."),
    click.option("--offsets", type=FILE, help="With --files: its offsets, as Kafka Connect shows them."),
    click.option("--worker-config", type=FILE, help="Properties of Kafka Connect's worker, for its converters."),
    click.option("--name", help="The name that it gets here; else the one that it has."),
    click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Sets a key; may be repeated."),
    click.option("--stopped", is_flag=True, help="Leave ours stopped."),
    click.option("--dry-run", is_flag=True, help="Show what would be done and what is in the way, change nothing."),
)
"""Options of whatever is taken over."""


def _of_a_move(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_MOVE):
        command = option(command)
    return command


@remote_command(import_, "debezium")
@_of_a_move
@click.option("--offsets-topic", metavar="TOPIC", help="With --files: the topic of Kafka Connect's offsets.")
@click.option("--kafka", metavar="HOST:PORT", help="With --offsets-topic: brokers.")
@click.option("--topic-prefix", default="", metavar="PREFIX", help="Other topics than those that Debezium writes.")
def import_debezium(remote: RemoteCluster, **options: Any) -> None:
    """Take over a connector of Debezium for PostgreSQL, MySQL or MariaDB, with its slot, its topics and its position.

    It is stopped in Kafka Connect, and ours goes on behind the last offset that it has stored: no change is missed, and
    only what it has written behind that comes again. Its config there stays, so that it can be given back: `cdcworker export debezium`.
    """
    former = _former(options)
    config, worker = _configs(former, options)
    own = taken(config, options["name"] or former.name, worker, options["topic_prefix"])
    _take_over(remote, former, own, options)


@remote_command(import_, "connect")
@_of_a_move
def import_connect(remote: RemoteCluster, **options: Any) -> None:
    """Take over a sink that runs in Kafka Connect, with the offsets of its topics.

    It is stopped there, and ours goes on behind the last offsets that its group has committed: nothing is missed, and what it has
    written behind them is written again. Its config there stays. A source of Debezium: `cdcworker import debezium`.
    """
    former = _former(options)
    config, worker = _configs(former, options)
    _take_over(remote, former, taken_sink(config, options["name"] or former.name, worker), options)


def _configs(former: FormerConnector, options: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Returns the former config with what was set, and the properties of its worker."""
    _, given = read_config(None, options["settings"])
    return {**former.config, **given}, _properties(options["worker_config"])


def _take_over(remote: RemoteCluster, former: FormerConnector, own: TakenConfig, options: Mapping[str, Any]) -> None:
    rehearsal = steps.rehearsed(remote, former, own)
    if options["dry_run"]:
        remote.tell(rehearsal, texts.rehearsal_text, ok=not rehearsal["refused"])
        raise SystemExit(EXIT_VALIDATION if rehearsal["refused"] else 0)
    if rehearsal["refused"]:
        remote.note(str(texts.rehearsal_text(rehearsal).text))
        remote.fail(CdcError(TAKEOVER_REFUSED, f"{rehearsal['refused']} in the way"))
    progress = steps.Progress(remote.note)
    steps.take_over(remote, former, own, progress, stopped=options["stopped"])
    _tell(remote, progress)


class _FolderByDefault(click.Group):
    """A group whose commands have names, and whose first word is a folder where it is none of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [FOLDER, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return sets.export if cmd_name == FOLDER else super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] in self.commands:
            return super().resolve_command(ctx, args)
        return sets.export.name, sets.export, args


@click.group("export", cls=_FolderByDefault, subcommand_metavar="DIR [NAMES]... | debezium NAME")
@cluster_options
def export() -> None:
    """Write connectors to files of DIR, one each, as `apply` reads them: all, or those of NAMES.

    Secrets are masked. A mask that is applied to the same cluster keeps the secret that it has.
    """


@remote_command(export, "debezium")
@click.argument("name", shell_complete=complete_names)
@CONNECT
@CONNECT_USER
@click.option("--connector", metavar="NAME", help="The name of Debezium's connector there; else the same.")
def export_debezium(
    remote: RemoteCluster, name: str, connect: str | None, connect_user: str | None, connector: str | None
) -> None:
    """The position of the stopped connector NAME as Debezium's offset, for PATCH …/offsets of Kafka Connect.

    With --connect it is done: NAME is stopped, and Debezium's connector, which has to be stopped there, goes on behind the
    last record that NAME has written.
    """
    if connect is None:
        remote.tell(steps.exported(remote, name), texts.offsets_text)
        return
    progress = steps.Progress(remote.note)
    steps.give_back(remote, _connect(connect, connect_user), (name, connector or name), progress)
    _tell(remote, progress)


def _tell(remote: RemoteCluster, progress: steps.Progress) -> None:
    content = {"steps": progress.done, "notes": progress.notes, "way_back": progress.way_back}
    remote.tell(content, texts.outcome_text)


def _former(options: Mapping[str, Any]) -> FormerConnector:
    if (options["connect"] is None) == (options["files"] is None):
        raise click.UsageError("one of --connect and --files is needed")
    if options["connect"] is not None:
        return running(_connect(options["connect"], options["connect_user"]), options["connector"])
    named, config = read_config(options["files"])
    name = options["connector"] or named
    if not name:
        raise click.UsageError(f"{options['files']}: the file names no connector; --connector does")
    topic, brokers, offsets = options.get("offsets_topic"), options.get("kafka"), options["offsets"]
    if (offsets is None) == (topic is None) or (topic is None) != (brokers is None):
        more = ", or --offsets-topic with --kafka" if "offsets_topic" in options else ""
        raise click.UsageError(f"--files needs --offsets{more}")
    return WrittenConnector(str(name), config, offsets or ConnectOffsetsTopic(str(brokers), str(topic)))


def _connect(url: str, user: str | None) -> KafkaConnect:
    return KafkaConnect(url, (user, os.environ.get(VARIABLE, "")) if user else None)


def _properties(path: Path | None) -> dict[str, str]:
    if path is None:
        return {}
    try:
        return read_properties(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise click.UsageError(f"{path}: the file is not UTF-8") from None
