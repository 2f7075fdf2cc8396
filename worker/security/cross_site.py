"""Refuses pages of other sites in a browser on this machine: they can reach the loopback interface and must not use it."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from cdcworker.worker.http import errors as e
from cdcworker.worker.security.access import NOT_PERMITTED
from starlette.types import Scope


def check(scope: Scope) -> None:
    """RestError 403 for a host name that DNS rebinding has led here, and for a request that a page of another site has
    sent."""
    headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
    host = headers.get(b"host", "")
    if not is_local(host):
        raise _refused(f"This worker answers to localhost and loopback addresses, not to {host[:100]!r}")
    origin = headers.get(b"origin")
    foreign = origin is not None and _netloc(origin) != host.lower()
    if foreign or headers.get(b"sec-fetch-site", "none") not in ("none", "same-origin"):
        raise _refused("The request comes from a page of another site")


def is_local(host: str) -> bool:
    """Returns whether the host is localhost or a loopback address."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _netloc(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def _refused(message: str) -> e.RestError:
    hint = "rest.insecure.bind=true lets everything through that reaches the port; rest.auth.file asks for a token."
    return e.RestError(403, message, NOT_PERMITTED, suggestion=hint)
