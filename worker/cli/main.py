"""The `cdcworker` command; each subcommand's module is imported only when it is called."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import click

if TYPE_CHECKING:
    from cdcworker.schemas.errors import CdcError
    from cdcworker.worker.cli.render.output import CliError

COMMANDS = {
    "start": ("cdcworker.worker.cli.commands.start", "start", "Run one worker against a Kafka."),
    "quickstart": (
        "cdcworker.worker.cli.commands.local.quickstart",
        "quickstart",
        "See a row's whole way: everything, started here.",
    ),
    "sandbox": (
        "cdcworker.worker.cli.commands.local.sandbox",
        "sandbox",
        "The embedded stack without load, until stopped.",
    ),
    "dev": ("cdcworker.worker.cli.commands.local.dev", "dev", "Changes of a database on the terminal, without Kafka."),
    "connector": (
        "cdcworker.worker.cli.commands.connectors.connector",
        "connector",
        "List, create and control connectors over REST.",
    ),
    "connection": (
        "cdcworker.worker.cli.commands.connectors.connection",
        "connection",
        "Addresses and logins that connectors share.",
    ),
    "plan": (
        "cdcworker.worker.cli.commands.connectors.sets",
        "plan",
        "What applying a folder of connectors would do.",
    ),
    "apply": (
        "cdcworker.worker.cli.commands.connectors.sets",
        "apply",
        "Make a cluster be as a folder of connectors says.",
    ),
    "export": (
        "cdcworker.worker.cli.commands.connectors.takeover",
        "export",
        "Write a cluster's connectors to a folder; give one back to Debezium.",
    ),
    "import": (
        "cdcworker.worker.cli.commands.connectors.takeover",
        "import_",
        "Take over a connector of Debezium, with its position.",
    ),
    "snapshots": (
        "cdcworker.worker.cli.commands.snapshots",
        "snapshots",
        "Read tables once more, watch, pause or cancel it.",
    ),
    "cluster": ("cdcworker.worker.cli.commands.cluster", "cluster", "Look at the workers, why tasks moved, drain one."),
    "top": ("cdcworker.worker.cli.commands.top", "top", "The cluster at work: lag, rates, what needs attention."),
    "tail": ("cdcworker.worker.cli.commands.tail", "tail", "Rows as they change, before and after."),
    "explain": (
        "cdcworker.worker.cli.commands.explain",
        "explain",
        "Where a row went: commit, topic, batch, warehouse.",
    ),
    "plugin": ("cdcworker.worker.cli.commands.plugin", "plugin", "Write a connector of your own, and test it."),
    "plugins": ("cdcworker.worker.cli.commands.info", "plugins", "The connectors that there are, and their keys."),
    "schemas": ("cdcworker.worker.cli.commands.info", "schemas", "Subjects, versions and schemas of the topics."),
    "doctor": (
        "cdcworker.worker.cli.commands.doctor",
        "doctor",
        "Examine a source and this machine; say how to repair them.",
    ),
    "transform": (
        "cdcworker.worker.cli.commands.transform",
        "transform",
        "Records of a topic before and after transforms.",
    ),
    "verify": (
        "cdcworker.worker.cli.commands.verify",
        "verify",
        "Compare a sink's warehouse with its source, row by row.",
    ),
    "dead-letters": (
        "cdcworker.worker.cli.commands.dead_letters",
        "dead_letters",
        "What a sink has set aside; apply it again.",
    ),
    "maintenance": (
        "cdcworker.worker.cli.commands.maintenance",
        "maintenance",
        "What was done to the tables of a lake; do it now.",
    ),
    "support-bundle": (
        "cdcworker.worker.cli.commands.support",
        "support_bundle",
        "One file for who helps: no rows, no secrets.",
    ),
    "alerts": ("cdcworker.worker.cli.commands.alerts", "alerts", "Incidents of connectors, and who is told of them."),
    "errors": ("cdcworker.worker.cli.commands.info", "errors", "What an error code means, and what to do."),
    "context": (
        "cdcworker.worker.cli.commands.context",
        "context",
        "Name clusters, so that commands need no addresses.",
    ),
    "auth": ("cdcworker.worker.cli.commands.auth", "auth", "Users of the REST API: tokens, passwords, grants."),
    "completion": ("cdcworker.worker.cli.commands.info", "completion", "Completion for bash, zsh or fish."),
    "roles": (
        "cdcworker.worker.cli.commands.roles",
        "roles",
        "The least rights in databases and in Kafka, as scripts.",
    ),
    "jars": ("cdcworker.worker.cli.commands.jars", "jars_group", "Fetch and verify the locked Java archives."),
    "spark-archive": (
        "cdcworker.worker.cli.commands.spark_archive",
        "spark_archive",
        "What executors of a Spark cluster need, as one file.",
    ),
}
EXIT_INTERRUPTED = 130


class LazyGroup(click.Group):
    """Lists commands without importing them, so that help answers at once."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not ctx.resilient_parsing and not args[0].startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(args[0], COMMANDS, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            ctx.fail(f"No such command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in COMMANDS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """Completes a command's name from the list alone, without importing a command."""
        from click.shell_completion import CompletionItem

        matches = [(name, text) for name, (_, _, text) in COMMANDS.items() if name.startswith(incomplete)]
        return [
            *(CompletionItem(name, help=text) for name, text in matches),
            *click.Command.shell_complete(self, ctx, incomplete),
        ]


def _version(ctx: click.Context, _: click.Parameter, requested: bool) -> None:
    if requested:
        from importlib.metadata import version

        click.echo(f"cdcworker {version('cdcworker')}")
        ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, expose_value=False, is_eager=True, callback=_version, help="Show the version.")
def cli() -> None:
    """Change data capture: PostgreSQL to Kafka to a warehouse, in order, once, and proven."""


def main() -> None:
    """Runs the command. Exit codes: 0 done, 1 failed while running, 2 not valid, 3 something outside is missing, 130
    interrupted."""
    from cdcworker.schemas.errors import CdcError

    try:
        # Outside its own mode click hands back the code of `ctx.exit(code)` as the result.
        result = cli.main(standalone_mode=False, prog_name="cdcworker")
        sys.exit(result if isinstance(result, int) else 0)
    except click.exceptions.Exit as done:
        sys.exit(done.exit_code)
    except click.ClickException as problem:
        _end_with_usage(problem)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:
        _end_broken_pipe()
    except CdcError as error:
        _end_with_error(error)
    except OSError as error:
        if error.filename is None:
            raise
        from cdcworker.worker.cli.render.output import FILE_FAILED

        _end_with_error(
            CdcError(FILE_FAILED, f"{error.filename}: {error.strerror}", where={"file": str(error.filename)})
        )


def _end_with_error(error: CdcError) -> NoReturn:
    from cdcworker.worker.cli.render.output import of_error

    _end(of_error(error, _words(), as_json=_as_json()))


def _end_with_usage(problem: click.ClickException) -> NoReturn:
    from cdcworker.worker.cli.render.output import CliError, of_usage

    if isinstance(problem, CliError):
        _end(problem)
    if _as_json():
        _end(of_usage(problem, _words()))
    problem.show()
    sys.exit(problem.exit_code)


def _end(error: CliError) -> NoReturn:
    error.show()
    sys.exit(error.exit_code)


def _end_broken_pipe() -> NoReturn:
    """Ends without an error when the reader of the output has gone, as with `head`; nothing is left to be flushed."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(141)


def _as_json() -> bool:
    """Returns whether JSON was requested, for errors before a command was reached that knows it."""
    return "--json" in sys.argv[1:]


def _words() -> str:
    """Returns the command's name without its arguments."""
    words: list[str] = []
    for word in sys.argv[1:3]:
        if word.startswith("-") or (not words and word not in COMMANDS) or not word.replace("-", "").isalpha():
            break
        words.append(word)
    return " ".join(words)


if __name__ == "__main__":
    main()
