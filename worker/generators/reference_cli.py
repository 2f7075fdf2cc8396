"""The reference page of the command line, from the declarations of its commands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

import click
from cdcworker.worker.generators.markdown import bullets, page, text

SHARED_BY_MIN: Final = 20
"""An option that so many commands have is described once, at the top of the page."""


def cli_page(group: click.Group) -> str:
    """Return the page of the `cdcworker` group, which is handed in since it stands above this package."""
    commands = dict(_walk("cdcworker", group))
    shared = _shared(commands.values())
    return page(
        "Command line",
        "Every command explains itself with `--help`. Exit codes: 0 done, 1 failed, 2 not valid, 3 something outside is missing"
        " or unreachable, 130 interrupted.",
        "## Options of commands that ask a cluster",
        "These commands ask any worker over REST, and take the following options. `[CDC_URL]` and the like name the environment"
        " variable that stands for the option.",
        bullets(_option(option) for option in shared),
        *(_command(name, command, {option.name for option in shared}) for name, command in commands.items()),
    )


def _walk(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield name, command
        return
    if command.params or name.count(" "):
        yield name, command
    context = click.Context(command)
    for child in command.list_commands(context):
        found = command.get_command(context, child)
        if found is not None and not found.hidden:
            yield from _walk(f"{name} {child}", found)


def _shared(commands: Iterable[click.Command]) -> list[click.Option]:
    options = [option for command in commands for option in _options(command)]
    seen = Counter((option.name, option.help) for option in options)
    first = {(option.name, option.help): option for option in reversed(options)}
    return [first[key] for key in reversed(first) if seen[key] >= SHARED_BY_MIN]


def _options(command: click.Command) -> list[click.Option]:
    return [param for param in command.params if isinstance(param, click.Option) and not param.hidden]


def _command(name: str, command: click.Command, shared: set[str | None]) -> str:
    level = "##" if name.count(" ") < 2 else "###"
    own = [option for option in _options(command) if option.name not in shared]
    asks_cluster = len(own) < len(_options(command))
    parts = [f"{level} {name}", f"```text\n{_usage(name, command)}\n```", *_paragraphs(command.help or "")]
    if own:
        parts.append(bullets(map(_option, own)))
    if asks_cluster and not isinstance(command, click.Group):
        parts.append("Takes the [options of commands that ask a cluster](#options-of-commands-that-ask-a-cluster).")
    return "\n\n".join(parts)


def _usage(name: str, command: click.Command) -> str:
    context = click.Context(command, info_name=name)
    return " ".join((name, *command.collect_usage_pieces(context)))


def _paragraphs(help_text: str) -> Iterator[str]:
    for paragraph in help_text.replace("\f", "").split("\n\n"):
        if paragraph.startswith("\b"):
            yield "```text\n" + paragraph.removeprefix("\b").strip("\n") + "\n```"
        else:
            yield text(paragraph)


def _option(option: click.Option) -> str:
    record = option.get_help_record(click.Context(click.Command("cdcworker"), terminal_width=1000))
    assert record is not None
    names, words = record
    return f"`{names}`: {text(words)}" if words else f"`{names}`"
