"""`cdcworker dev`: the changes of a database on the terminal, without Kafka, and with nothing left behind on the server."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.cli.client.remote import command_name, json_option, wants_json
from cdcworker.worker.cli.client.secret_options import secret_of
from cdcworker.worker.cli.render.output import clean, of_error
from cdcworker.worker.devstack.signals import interruptible

if TYPE_CHECKING:
    from cdcworker.worker.diagnostics.doctor import DoctorTarget

EXIT_INTERRUPTED = 130
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
PASSWORD_KEY = "database.password"  # noqa: S105  the name of a key, no secret
PUBLICATION_KEY = "publication.name"
SEEN = "the password in --source is seen in process lists; --dsn-env, --dsn-file and --password-env are not"

_PASSWORD = re.compile(r"password\s*=")
"""As the texts of libpq have it, which may have spaces there."""


@click.command("dev")
@click.option("--source", metavar="URL", help="Connection string of the database, best without a password.")
@click.option("--dsn-env", metavar="VARIABLE", help="The connection string is in this variable.")
@click.option("--dsn-file", type=FILE, help="The connection string is in this file.")
@click.option("--password-env", metavar="VARIABLE", help="The password is in this variable.")
@click.option("--password-file", type=FILE, help="The password is in this file.")
@click.option(
    "--tables", multiple=True, metavar="PATTERN",
    help="Only tables whose full name this regular expression matches; may be repeated. Without it: all tables."
    " A comma stands between several expressions: within one it is written as \\x2c.",
)  # fmt: skip
@click.option("--publication", metavar="NAME", help="PostgreSQL: read this publication, as it is, and create none.")
@click.option("--snapshot", is_flag=True, help="First show the rows that the tables have now.")
@click.option("--count", type=click.IntRange(min=1), help="End after so many changes.")
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), help="End after so many seconds.")
@click.option("--all-columns", is_flag=True, help="Of updates show the columns that did not change too.")
@json_option
@click.pass_context
def dev(context: click.Context, /, **asked: Any) -> None:
    """Show the changes of a database from now on, as a connector would read them; Ctrl-C ends it.

    With --snapshot the rows that the tables have now come first, or between changes, as reads.

    Needs no Kafka and no worker. On PostgreSQL it reads by a temporary slot, and by a publication that is dropped at the
    end, also where this process is killed. To MySQL and MariaDB nothing is written. With --json each line is an object.

    Exit codes: 0 ended as asked, 1 failed while running, 2 not valid, 3 the server cannot be reached, 130 interrupted
    before --count or --seconds was reached.
    """
    as_json = wants_json(context)
    try:
        with interruptible(), _errors_only():
            _Watch(asked, as_json=as_json).run()
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED if asked["count"] or asked["seconds"] else 0)
    except CdcError as error:
        raise of_error(error, command_name(context), as_json=as_json) from error


@contextmanager
def _errors_only() -> Iterator[None]:
    """What a worker logs as a warning is for its operator."""
    logger = logging.getLogger("cdcworker")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


class _Watch:
    def __init__(self, asked: Mapping[str, Any], *, as_json: bool) -> None:
        self._asked = asked
        self._as_json = as_json
        self._shown = 0
        self._is_ready = False

    def run(self) -> None:
        """Shows changes until it is enough."""
        from cdcworker.connectors.api.context import TaskContext
        from cdcworker.connectors.api.source import WatchesChanges
        from cdcworker.worker.diagnostics.watch import changes, require_watched

        target = self._target()
        connector = target.connector
        require_watched(isinstance(connector, WatchesChanges), target.config["connector.class"])
        if self._asked["publication"] is not None and PUBLICATION_KEY not in connector.config_def.keys:
            raise click.UsageError("--publication is for PostgreSQL: this database has none")
        try:
            self._tell("connecting", {}, f"connecting to {target.config['database.hostname']}")
            with connector.watched(TaskContext("dev", 0, 1, "dev", ""), rows=self._asked["snapshot"]) as watched:
                left_out = dict(watched.left_out)
                notes = [f"! {name} is left out: {why}" for name, why in left_out.items()]
                self._is_ready = True
                self._tell("ready", {"left_out": left_out}, "\n".join([*notes, "changes from now on; Ctrl-C ends it"]))
                for change in changes(watched.task, self._asked["seconds"]):
                    self._show(change)
                    if self._shown == self._asked["count"]:
                        break
        except CdcError as error:
            raise target.without_secrets(error) from error
        finally:
            if self._is_ready:
                self._tell("end", {"shown": self._shown}, f"{self._shown:,} changes shown")

    def _target(self) -> DoctorTarget:
        from cdcworker.worker.diagnostics.doctor import from_connection_string, target

        asked = self._asked
        config = {**from_connection_string(self._connection_string()), "topic.prefix": "dev"}
        password = secret_of(asked["password_env"], asked["password_file"])
        if password is not None:
            config[PASSWORD_KEY] = password
        if asked["tables"]:
            config["table.include.list"] = ",".join(asked["tables"])
        if asked["publication"] is not None:
            config[PUBLICATION_KEY] = asked["publication"]
        return target("dev", config)

    def _connection_string(self) -> str:
        """Returns the one connection string that is named."""
        asked = self._asked
        given, named = asked["source"], secret_of(asked["dsn_env"], asked["dsn_file"])
        if (given is None) == (named is None):
            raise click.UsageError("name one database, with --source, --dsn-env or --dsn-file")
        if named is not None:
            return named
        if _has_password(given):
            self._say(f"! {SEEN}")
        return str(given)

    def _show(self, change: Mapping[str, Any]) -> None:
        from cdcworker.worker.cli.render.tail import print_change

        self._shown += 1
        if self._as_json:
            self._line("change", change)
        else:
            print_change(change, all_columns=self._asked["all_columns"])

    def _tell(self, event: str, content: Mapping[str, Any], text: str) -> None:
        if self._as_json:
            self._line(event, content)
        else:
            self._say(text)

    def _line(self, event: str, content: Mapping[str, Any]) -> None:
        click.echo(json.dumps({"event": event, **content}, ensure_ascii=False))

    def _say(self, text: str) -> None:
        click.echo(clean(text), err=True)


def _has_password(text: str) -> bool:
    if _PASSWORD.search(text):
        return True
    try:
        return bool(urlsplit(text).password)
    except ValueError:
        return False
