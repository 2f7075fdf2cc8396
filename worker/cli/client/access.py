"""The credentials of a command: a token, a client certificate, and the authority that it trusts."""

from __future__ import annotations

import os
import re
import ssl
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cdcworker.schemas.errors import CdcError, declare

VARIABLES = {"token": "CDC_TOKEN", "ca": "CDC_CA", "cert": "CDC_CERT", "key": "CDC_KEY"}
LOOPBACK = ("localhost", "127.0.0.1", "::1")
TOKEN = re.compile(r"[\x21-\x7e]{1,4096}")

OPEN_FILE = declare(
    "cli.contexts_open",
    "config",
    "Others may read the file of contexts, which holds a token",
    "chmod 600 FILE, then take the token back (`cdcworker auth revoke`): somebody may have it.",
)
BAD_TLS = declare(
    "cli.tls_invalid", "config", "The certificate or the authority cannot be used", "Name PEM files that you may read."
)
BAD_TOKEN = declare(
    "cli.token_invalid", "config", "This is no token", "Give it as `cdcworker auth add` printed it, on one line."
)


@dataclass(frozen=True)
class ClientAccess:
    """The credentials for one cluster."""

    token: str = field(default="", repr=False)
    ca: str = ""
    cert: str = ""
    key: str = ""

    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.token}"} if self.token else {}

    def options(self) -> dict[str, Any]:
        """Returns the options for httpx; none when its defaults are right. CdcError for files that cannot be used."""
        if not (self.ca or self.cert):
            return {}
        try:
            context = ssl.create_default_context(cafile=self.ca or None)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            if self.cert:
                context.load_cert_chain(self.cert, self.key or None)
        except ssl.SSLError as exc:
            raise CdcError(BAD_TLS, f"cannot be loaded: {exc.reason or 'not PEM'}") from None
        except OSError as exc:
            raise CdcError(BAD_TLS, f"cannot be read: {exc.strerror}") from None
        return {"verify": context}

    def in_clear(self, url: str) -> bool:
        """Returns whether the token would go over a network unencrypted."""
        parts = urlsplit(url)
        return bool(self.token) and parts.scheme == "http" and parts.hostname not in LOOPBACK

    def stored(self) -> dict[str, str]:
        """Returns the members of a context's entry that are set."""
        members = {"token": self.token, "ca": self.ca, "cert": self.cert, "key": self.key}
        return {name: value for name, value in members.items() if value}


def of_entry(entry: Mapping[str, Any]) -> ClientAccess:
    """Returns the credentials of a context's entry."""
    return ClientAccess(**{name: str(entry[name]) for name in VARIABLES if name in entry})


def of_environment(options: Mapping[str, str], base: ClientAccess) -> ClientAccess:
    """Returns the credentials: options first, then the environment, then those of the context.

    The token is no option, since process lists show options.
    """
    members = base.stored()
    for name, variable in VARIABLES.items():
        value = options.get(name) or os.environ.get(variable, "")
        if value:
            members[name] = value
    return checked(ClientAccess(**members))


def checked(access: ClientAccess) -> ClientAccess:
    """Returns the credentials. CdcError for a text that is no token."""
    if access.token and not TOKEN.fullmatch(access.token):
        raise CdcError(BAD_TOKEN, "the token holds blanks or other characters that no token has")
    return access


def check_mode(file: Path) -> None:
    """CdcError unless only its owner can read the file, which holds tokens."""
    status = file.stat()
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise CdcError(OPEN_FILE, f"{file} has the mode {stat.S_IMODE(status.st_mode):o}", where={"file": str(file)})
