"""`cdcworker auth`: the file of users that workers read, with new tokens and hashed passwords."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.cli.client.files import locked, replace
from cdcworker.worker.cli.client.remote import command_name, json_option, wants_json
from cdcworker.worker.cli.commands.context import tell
from cdcworker.worker.cli.render.output import FoldedText, TextTable, of_error

FILE = click.argument("path", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
KNOWN = click.argument("path", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path))


@click.group("auth")
@json_option
def auth() -> None:
    """Users of the REST API, in the file that the worker property rest.auth.file names.

    Workers read it again when it changes. A token is shown once; the file holds its hash only.
    """


@auth.command("add")
@FILE
@click.argument("name")
@click.option(
    "--grant", "grants", multiple=True, required=True, metavar="ROLE[:PREFIX[@topics=A+B]]",
    help="read, operate or admin, on connectors whose names begin with PREFIX; or schemas. Connectors of admin:PREFIX may use "
    "topics that begin with PREFIX, or with A or B; * means any. May be repeated.",
)  # fmt: skip
@click.option("--password", "with_password", is_flag=True, help="Ask for a password (basic) instead of making a token.")
@click.option("--certificate", "certificates", multiple=True, metavar="CN", help="Common name of a client certificate.")
@click.option("--days", type=click.IntRange(min=1), help="The token expires after so many days.")
@json_option
def add(
    path: Path, name: str, grants: tuple[str, ...], with_password: bool, certificates: tuple[str, ...], days: int | None
) -> None:
    """Add a user, with a new token unless a password or a certificate is given. FILE is made if there is none."""
    from cdcworker.worker.security.credentials import hashed

    user: dict[str, Any] = {"name": name, "grants": list(grants)}
    token = None
    if certificates:
        user["certificates"] = list(certificates)
    if with_password:
        user["password"] = hashed(click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
    elif not certificates:
        token, entry = _new_token(days)
        user["tokens"] = [entry]
    with locked(path):
        content = _load(path, missing_ok=True)
        if any(known["name"] == name for known in content["users"]):
            raise click.UsageError(f"there is a user {name}; `cdcworker auth token` gives another token")
        content["users"].append(user)
        _save(path, content)
    tell({"name": name, "grants": list(grants), "token": token}, FoldedText(f"added {name}", token or f"added {name}"))


@auth.command("token")
@KNOWN
@click.argument("name")
@click.option("--days", type=click.IntRange(min=1), help="It expires after so many days.")
@json_option
def token(path: Path, name: str, days: int | None) -> None:
    """Another token for a user: the earlier ones stay valid until they are revoked."""
    new_token, entry = _new_token(days)
    with locked(path):
        content = _load(path)
        user = next((user for user in content["users"] if user["name"] == name), None)
        if user is None:
            raise click.UsageError(f"there is no user {name} in the file")
        user["tokens"] = [*(user.get("tokens") or ()), entry]
        _save(path, content)
    tell({"name": name, "token": new_token}, FoldedText(f"another token for {name}", new_token))


@auth.command("revoke")
@KNOWN
@click.argument("id")
@json_option
def revoke(path: Path, id: str) -> None:
    """Take a token away, by its id (of `auth list`, and the first part of the token), or a whole user by name."""
    with locked(path):
        _save(path, {"users": _without(_load(path)["users"], id)})
    tell({"revoked": id}, f"revoked {id}")


def _without(before: list[dict[str, Any]], id: str) -> list[dict[str, Any]]:
    users = [user for user in before if user["name"] != id]
    is_known = len(users) < len(before)
    for user in users:
        remaining = [entry for entry in user.get("tokens") or () if entry["id"] != id]
        is_known = is_known or len(remaining) < len(user.get("tokens") or ())
        if "tokens" in user:
            user["tokens"] = remaining
    if not is_known:
        raise click.UsageError(f"there is no token and no user {id} in the file")
    return users


@auth.command("list")
@KNOWN
@json_option
def list_(path: Path) -> None:
    """Users, their grants, the ids of their tokens. No secret is in the file, and none is shown."""
    content = _load(path)
    rows, users = [], []
    for user in content["users"]:
        tokens = [{"id": entry["id"], "expires": entry.get("expires")} for entry in user.get("tokens") or ()]
        grants = list(user.get("grants") or ())
        certificates = list(user.get("certificates") or ())
        users.append(
            {
                "name": user["name"],
                "grants": grants,
                "password": bool(user.get("password")),
                "tokens": tokens,
                "certificates": certificates,
            }
        )
        by = [*(["password"] if user.get("password") else ()), *(f"token {entry['id']}" for entry in tokens)]
        rows.append((user["name"], ", ".join(grants), ", ".join([*by, *(f"CN={name}" for name in certificates)])))
    tell({"users": users}, TextTable(("NAME", "GRANTS", "KNOWN BY"), rows, of="user"))


def _new_token(days: int | None) -> tuple[str, dict[str, Any]]:
    from cdcworker.worker.security.credentials import new_token

    id, made, hash = new_token()
    entry: dict[str, Any] = {"id": id, "hash": hash}
    if days is not None:
        entry["expires"] = (datetime.now(UTC) + timedelta(days=days)).isoformat(timespec="seconds")
    return made, entry


def _load(path: Path, *, missing_ok: bool = False) -> dict[str, Any]:
    """Returns the content of the file after the check that a worker makes."""
    import yaml
    from cdcworker.worker.security.users import read

    if missing_ok and not path.exists():
        return {"users": []}
    with _reporting_errors():
        read(path)
    content: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return content


def _save(path: Path, content: dict[str, Any]) -> None:
    """Writes the file after a check of its new content."""
    import yaml
    from cdcworker.worker.security.users import parse

    try:
        parse(content)
    except ValueError as exc:
        raise click.UsageError(str(exc)) from None
    replace(path, yaml.safe_dump(content, sort_keys=False))


@contextlib.contextmanager
def _reporting_errors() -> Any:
    try:
        yield
    except CdcError as error:
        here = click.get_current_context()
        raise of_error(error, command_name(here), as_json=wants_json(here)) from error
