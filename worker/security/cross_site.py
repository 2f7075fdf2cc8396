"""Refuses pages of other sites in a browser: they reach the loopback interface of its machine, and the browser sends passwords
and client certificates along with what they ask."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from cdcworker.worker.http import errors as e
from cdcworker.worker.security.access import NOT_PERMITTED
from starlette.types import Scope

READS: Final = ("GET", "HEAD", "OPTIONS")
DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}
OTHER_SITE: Final = "Use the page of the worker itself, or a token instead of a password or a certificate."


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


def check_change(scope: Scope) -> None:
    """RestError 403 for a change that a page of another site has sent. Of a browser that does not say so, as over http, the
    page's host decides: it is the one that was asked, also where a proxy says that one in `X-Forwarded-Host`. No page of
    another site can send that header."""
    if scope.get("method") in READS:
        return
    headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
    site, origin = headers.get(b"sec-fetch-site"), headers.get(b"origin")
    if site is None:
        hosts = [headers.get(b"host", ""), *headers.get(b"x-forwarded-host", "").split(",")]
        foreign = origin is not None and not _is_of(origin, hosts)
    else:
        foreign = site not in ("none", "same-origin")
    if foreign:
        raise e.RestError(403, "The request comes from a page of another site", NOT_PERMITTED, suggestion=OTHER_SITE)


def is_local(host: str) -> bool:
    """Returns whether the host is localhost or a loopback address."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _is_of(origin: str, hosts: Iterable[str]) -> bool:
    """Returns whether a page of this origin has asked one of these hosts. Browsers leave out the scheme's own port; proxies
    may add it."""
    netloc, port = _netloc(origin), DEFAULT_PORTS.get(origin.partition(":")[0].lower(), "")
    return bool(netloc) and any(host.strip().lower().removesuffix(port) == netloc for host in hosts)


def _netloc(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def _refused(message: str) -> e.RestError:
    hint = "rest.insecure.bind=true lets everything through that reaches the port; rest.auth.file asks for a token."
    return e.RestError(403, message, NOT_PERMITTED, suggestion=hint)
