"""The `cdcworker` command; each subcommand's module is imported only when it is called."""

from __future__ import annotations

import importlib
import sys

import click

COMMANDS = {
    "start": ("cdcworker.worker.cli.start", "start", "Run one worker against a Kafka."),
    "quickstart": ("cdcworker.worker.cli.quickstart", "quickstart", "See a row's whole way: everything, started here."),
    "sandbox": ("cdcworker.worker.cli.sandbox", "sandbox", "The embedded stack without load, until stopped."),
    "connector": ("cdcworker.worker.cli.connector", "connector", "List, create and control connectors over REST."),
    "cluster": ("cdcworker.worker.cli.cluster", "cluster", "Look at the workers, why tasks moved, drain one."),
    "jars": ("cdcworker.worker.cli.jars", "jars", "Fetch and verify the locked Java archives."),
}
EXIT_RUNTIME, EXIT_VALIDATION, EXIT_ENVIRONMENT = 1, 2, 3
EXIT_OF_KIND = {"config": EXIT_VALIDATION, "transient": EXIT_ENVIRONMENT, "environment": EXIT_ENVIRONMENT}


class LazyGroup(click.Group):
    """Lists commands without importing them: help answers at once."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in COMMANDS.items()])


def _version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        click.echo(f"cdcworker {version('cdcworker')}")
        ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, expose_value=False, is_eager=True, callback=_version, help="Show the version.")
def cli() -> None:
    """Change data capture: PostgreSQL to Kafka to a warehouse, in order, once, and proven."""


def main() -> None:
    """Exit codes: 0 done, 1 failed while running, 2 not valid, 3 something outside is missing, 130 interrupted."""
    from cdcworker.schemas.errors import CdcError

    try:
        # Outside its own mode click hands back the code of `ctx.exit(code)` as the result.
        result = cli.main(standalone_mode=False)
        sys.exit(result if isinstance(result, int) else 0)
    except click.exceptions.Exit as done:
        sys.exit(done.exit_code)
    except click.ClickException as problem:
        problem.show()
        sys.exit(problem.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except CdcError as error:
        click.echo(f"error: {error}\n  {error.hint}", err=True)
        sys.exit(EXIT_OF_KIND.get(error.kind, EXIT_RUNTIME))


if __name__ == "__main__":
    main()
