"""Named clusters: the REST addresses that commands use, stored in the user's configuration folder."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from cdcworker.schemas.errors import CdcError, declare
from cdcworker.worker.cli.client.access import ClientAccess, check_mode, of_entry, of_environment
from cdcworker.worker.cli.client.files import locked, replace

DEFAULT_URL = "http://127.0.0.1:8083"
URL_VARIABLE, CONTEXT_VARIABLE = "CDC_URL", "CDC_CONTEXT"

UNREADABLE = declare(
    "cli.contexts_unreadable", "config", "The file of contexts cannot be read", "Correct it, or remove it."
)
UNKNOWN = declare(
    "cli.context_unknown", "config", "There is no context of this name", "`cdcworker context list` shows them."
)
BAD_URL = declare(
    "cli.url_invalid",
    "config",
    "The address of a worker is not valid",
    "http://host:port or https://host:port; a password never belongs into it: process lists show it.",
)
NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True)
class Contexts:
    """All named clusters, and the one that commands use."""

    current: str = ""
    urls: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    access: Mapping[str, ClientAccess] = field(default_factory=dict)

    def get(self, name: str) -> tuple[str, ...]:
        """Returns the addresses of a named cluster. CdcError for an unknown name."""
        if name not in self.urls:
            raise CdcError(UNKNOWN, f"there is no context {name!r}", where={"file": str(path())})
        return self.urls[name]


def path() -> Path:
    """Returns the file of contexts."""
    base = os.environ.get("XDG_CONFIG_HOME") or ""
    folder = Path(base) if base.startswith("/") else Path.home() / ".config"
    return folder / "cdcworker" / "contexts.json"


def load() -> Contexts:
    """Reads the file of contexts. CdcError when it cannot be read, or when others may read a file with tokens."""
    try:
        content = json.loads(path().read_text(encoding="utf-8"))
        current, stored = str(content["current"]), content["contexts"]
        access = {str(name): of_entry(item) for name, item in stored.items()}
        if any(item.token for item in access.values()):
            check_mode(path())
        return Contexts(current, {str(name): tuple(map(str, item["urls"])) for name, item in stored.items()}, access)
    except FileNotFoundError:
        return Contexts()
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as exc:
        raise CdcError(UNREADABLE, f"{path()}: {type(exc).__name__}", where={"file": str(path())}) from exc


def changing() -> AbstractContextManager[None]:
    """Locks the file of contexts for a command that reads it and writes it again."""
    return locked(path())


def save(contexts: Contexts) -> None:
    """Replaces the file as a whole: a reader sees the old file or the new one."""
    entries = {
        name: {"urls": urls, **contexts.access.get(name, ClientAccess()).stored()}
        for name, urls in contexts.urls.items()
    }
    content = {"current": contexts.current, "contexts": entries}
    replace(path(), json.dumps(content, indent=2), keeps_mode=False)


def chosen(urls: Iterable[str], context: str) -> tuple[str, ...]:
    """Returns the addresses to use: those of the command, then of the environment, then of the current context."""
    given = split(urls)
    if given:
        return given
    if context:
        return load().get(context)
    from_env = split([os.environ.get(URL_VARIABLE, "")])
    if from_env:
        return from_env
    if os.environ.get(CONTEXT_VARIABLE):
        return load().get(os.environ[CONTEXT_VARIABLE])
    stored = load()
    return stored.get(stored.current) if stored.current else (DEFAULT_URL,)


def access_of(urls: Iterable[str], context: str, options: Mapping[str, str]) -> ClientAccess:
    """Returns the credentials for these addresses. A context's token goes to the context's own addresses only."""
    base = ClientAccess()
    given = any(urls) or (not context and os.environ.get(URL_VARIABLE))
    if not given:
        stored = load()
        name = context or os.environ.get(CONTEXT_VARIABLE) or stored.current
        base = stored.access.get(name, base)
    return of_environment(options, base)


def split(urls: Iterable[str]) -> tuple[str, ...]:
    """Returns addresses given one by one or separated by commas. CdcError for one that is not valid."""
    return tuple(valid(part.strip()) for text in urls for part in text.split(",") if part.strip())


def valid(url: str) -> str:
    """Returns the address of a worker. CdcError when it is none, or holds a password."""
    try:
        parts = urlsplit(url)
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        fine, parts = False, urlsplit("")
    if parts.username is not None or parts.password is not None:
        raise CdcError(BAD_URL, f"the address of {parts.hostname} holds a user or a password")
    if not fine or parts.query or parts.fragment:
        raise CdcError(BAD_URL, f"{url!r} is no address of a worker{_meant(url)}")
    return url.rstrip("/")


def _meant(url: str) -> str:
    """Returns a hint for `localhost:8083`: most often it is the scheme that is missing."""
    return f"; did you mean http://{url}?" if re.fullmatch(r"[A-Za-z0-9.-]+:[0-9]{1,5}", url) else ""
