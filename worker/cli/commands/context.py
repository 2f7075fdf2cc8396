"""`cdcworker context`: named clusters, so that commands need no addresses."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.cli.client import contexts
from cdcworker.worker.cli.client.access import ClientAccess, checked
from cdcworker.worker.cli.client.remote import command_name, json_option, wants_json
from cdcworker.worker.cli.render.output import Shown, TextTable, envelope, of_error, show, summary_of


@click.group("context")
@json_option
def context() -> None:
    """Named clusters: their addresses, and which one commands ask.

    They lie in $XDG_CONFIG_HOME/cdcworker/contexts.json. --url, --context, CDC_URL and CDC_CONTEXT go before.
    """


def tell(content: Any, text: Shown, *, ok: bool = True) -> None:
    """Prints the result of a command that talks to no cluster."""
    here = click.get_current_context()
    if wants_json(here):
        click.echo(envelope(command_name(here), content, ok=ok, summary=summary_of(text)))
    else:
        show(text)


@context.command("add")
@click.argument("name")
@click.argument("urls", nargs=-1, required=True, metavar="URL...")
@click.option("--token", "with_token", is_flag=True, help="Ask for a token (or read it from a pipe) and keep it.")
@click.option("--ca", default="", metavar="FILE", help="Authority of the workers' certificates.")
@click.option("--cert", default="", metavar="FILE", help="Your client certificate, PEM.")
@click.option("--key", default="", metavar="FILE", help="Its key, if it is not in the same file.")
@json_option
def add(name: str, urls: tuple[str, ...], with_token: bool, ca: str, cert: str, key: str) -> None:
    """Remember a cluster by any of its workers' addresses. The first one that is added is used.

    The file is readable by you alone; a token is never given on the command line, which others can see.
    """
    if not contexts.NAME.fullmatch(name):
        raise click.UsageError("a name has letters, digits, dots, hyphens and underscores, at most 64")
    with _reporting_errors():
        given = contexts.split(urls)
        files = {"ca": _absolute(ca), "cert": _absolute(cert), "key": _absolute(key)}
        token = click.prompt("Token", hide_input=True, err=True).strip() if with_token else ""
        shows = checked(ClientAccess(token, **files))
    with _reporting_errors(), contexts.changing():
        stored = contexts.load()
        current = stored.current or name
        access = {**stored.access, name: shows}
        contexts.save(contexts.Contexts(current, {**stored.urls, name: given}, access))
    tell({"name": name, "urls": given, "current": current == name}, f"added {name}")


@context.command("use")
@click.argument("name")
@json_option
def use(name: str) -> None:
    """Ask this cluster from now on."""
    with _reporting_errors(), contexts.changing():
        stored = contexts.load()
        stored.get(name)
        contexts.save(contexts.Contexts(name, stored.urls, stored.access))
    tell({"name": name}, f"using {name}")


@context.command("remove")
@click.argument("name")
@json_option
def remove(name: str) -> None:
    """Forget a cluster's addresses; the cluster itself is not touched."""
    with _reporting_errors(), contexts.changing():
        stored = contexts.load()
        stored.get(name)
        rest = {known: urls for known, urls in stored.urls.items() if known != name}
        access = {known: item for known, item in stored.access.items() if known != name}
        contexts.save(contexts.Contexts("" if stored.current == name else stored.current, rest, access))
    tell({"name": name}, f"removed {name}")


@context.command("list")
@json_option
def list_() -> None:
    """The clusters that are known by name."""
    with _reporting_errors():
        stored = contexts.load()
    content = [
        {"name": name, "urls": urls, "current": name == stored.current, "token": bool(_of(stored, name).token)}
        for name, urls in sorted(stored.urls.items())
    ]
    rows = [
        ("*" if name == stored.current else "", name, ", ".join(urls)) for name, urls in sorted(stored.urls.items())
    ]
    tell(content, TextTable(("", "NAME", "ADDRESSES"), rows, of="context"))


def _of(stored: contexts.Contexts, name: str) -> ClientAccess:
    return stored.access.get(name, ClientAccess())


def _absolute(file: str) -> str:
    return str(Path(file).absolute()) if file else ""


@contextlib.contextmanager
def _reporting_errors() -> Iterator[None]:
    """Turns a CdcError into the command's error."""
    try:
        yield
    except CdcError as error:
        here = click.get_current_context()
        raise of_error(error, command_name(here), as_json=wants_json(here)) from error
