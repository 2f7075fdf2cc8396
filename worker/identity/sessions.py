"""Sessions of the console: cookies that every worker with the cluster's secret has made and takes, and that nobody else can make."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import urlsplit

from cdcworker.schemas.untrusted.json_text import JsonLimits, parse_object
from cdcworker.worker.http import errors as e
from cdcworker.worker.identity.access_rules import Identity
from cdcworker.worker.identity.bearer import Tokens
from cdcworker.worker.identity.settings import ConsoleClient
from cdcworker.worker.security.access import Caller
from cdcworker.worker.security.signature_forms import length_prefixed
from cdcworker.worker.security.worker_secrets import PLAIN, SECRETS_MAX, Secrets

BY: Final = "session"
"""How a caller with a session of the console was authenticated."""
COOKIE_CHARS_MAX: Final = 3_800
"""Browsers keep cookies of 4,096 bytes, with their names and attributes."""
COOKIES_MAX: Final = 4
"""So many cookies of one name are looked at."""
LOGIN_S: Final = 600.0
"""Seconds within which somebody has to come back from the provider."""
RANDOM_BYTES: Final = 24
NONCE_BYTES: Final = 12
CONTENT: Final = JsonLimits(bytes_max=COOKIE_CHARS_MAX, depth_max=4)


@dataclass(frozen=True, slots=True)
class Cookie:
    """A cookie to be set. An empty value with `seconds` 0 takes it away."""

    name: str
    value: str
    path: str
    seconds: int
    same_site: str
    secure: bool

    def header(self) -> str:
        parts = [f"{self.name}={self.value}", f"Path={self.path}", f"Max-Age={self.seconds}", "HttpOnly"]
        return "; ".join([*parts, f"SameSite={self.same_site}", *(["Secure"] if self.secure else [])])


@dataclass(frozen=True, slots=True)
class Attempt:
    """A login that has begun. What goes to the provider is made of the cookie and the cluster's secret, so that the cookie alone
    tells nobody what the provider expects."""

    cookie: str
    state: str
    nonce: str
    verifier: str

    @property
    def challenge(self) -> str:
        return _text(hashlib.sha256(self.verifier.encode()).digest())


class Cookies:
    """The names and the reach of the cookies of one console."""

    def __init__(self, console_url: str, cluster: str) -> None:
        parts = urlsplit(console_url)
        self._secure = parts.scheme == "https"
        self._base = parts.path.removesuffix("ui/")
        # Ports and clusters of one host share a browser's cookies.
        mark = hashlib.sha256(f"{cluster}\0{console_url}".encode()).hexdigest()[:8]
        begin = "" if not self._secure else "__Host-" if self._base == "/" else "__Secure-"
        self.session_name = f"{begin}cdcworker-{mark}"
        self.hint_name = f"{'__Secure-' if self._secure else ''}cdcworker-hint-{mark}"
        self.login_name = f"{'__Secure-' if self._secure else ''}cdcworker-login-{mark}"

    def session(self, value: str, seconds: float) -> Cookie:
        """Returns the cookie of a session: pages of other sites never have it sent."""
        return Cookie(self.session_name, value, self._base, int(seconds), "Strict", self._secure)

    def login(self, value: str, seconds: float = LOGIN_S) -> Cookie:
        """Returns the cookie of a login under way: it has to come along when the provider leads the browser back."""
        return Cookie(self.login_name, value, f"{self._base}ui/callback", int(seconds), "Lax", self._secure)

    def hint(self, value: str, seconds: float) -> Cookie:
        """Returns the cookie that a logout at the provider needs."""
        return Cookie(self.hint_name, value, f"{self._base}ui/logout", int(seconds), "Strict", self._secure)


class Sessions:
    """Makes and takes the cookies. `clock` is the time since 1970."""

    def __init__(
        self,
        tokens: Tokens,
        client: ConsoleClient,
        cookies: Cookies,
        worker_secrets: Secrets,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.cookies = cookies
        self._tokens = tokens
        self._client = client
        self._secrets = worker_secrets
        self._clock = clock

    def begin(self) -> Attempt:
        """Returns a new login."""
        return self._attempt(f"{int(self._clock())}.{_text(secrets.token_bytes(RANDOM_BYTES))}", self._keys()[0])

    def resumed(self, header: str, state: str) -> Attempt | None:
        """Returns the login to which a browser comes back; None when it has not begun it, or a long time ago."""
        for value in values_of(header, self.cookies.login_name):
            began = value.partition(".")[0]
            if not (value.isascii() and began.isdigit() and len(began) < 12 and len(value) < 100):
                continue
            if not 0 <= self._clock() - int(began) < LOGIN_S:
                continue
            for key in self._keys():
                attempt = self._attempt(value, key)
                if hmac.compare_digest(attempt.state.encode(), state.encode("utf-8", "replace")):
                    return attempt
        return None

    def open(self, identity: Identity) -> Cookie | None:
        """Returns the cookie of a new session; None for somebody with too many roles for one. It holds the roles that the
        operator's file names, and no token."""
        now = self._clock()
        content = {
            "sub": identity.subject,
            "name": identity.name,
            "roles": self._tokens.known_roles(identity.roles),
            "jti": identity.token,
            "sid": identity.session,
            "iat": round(now),
        }
        payload = _text(json.dumps(content, separators=(",", ":")).encode())
        value = ".".join([payload, *(self._mac(key, payload) for key in self._keys())])
        return self.cookies.session(value, self._client.session_s) if len(value) <= COOKIE_CHARS_MAX else None

    def hint(self, token: str) -> Cookie:
        """Returns the cookie with the login's ID token, which the provider takes for a logout without a question. It is encrypted;
        one that is too long is left out."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        nonce = secrets.token_bytes(NONCE_BYTES)
        value = _text(nonce + AESGCM(_digest(self._keys()[0], "hint")).encrypt(nonce, token.encode(), None))
        fits = len(value) <= COOKIE_CHARS_MAX
        return self.cookies.hint(value, self._client.session_s) if fits else self.cookies.hint("", 0)

    def hinted(self, header: str) -> str:
        """Returns the ID token of the login; empty where it is not known."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        for value in values_of(header, self.cookies.hint_name):
            for key in self._keys():
                with contextlib.suppress(InvalidTag, ValueError):
                    sealed = _bytes(value)
                    cipher = AESGCM(_digest(key, "hint"))
                    return cipher.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], None).decode()
        return ""

    def caller(self, header: str) -> Caller | None:
        """Returns the caller of a Cookie header; None without a session that counts. RestError 401 for one that is revoked."""
        found = next(filter(None, map(self._identity, values_of(header, self.cookies.session_name))), None)
        return None if found is None else self._tokens.caller_of(found, BY)

    def _identity(self, value: str) -> Identity | None:
        payload, *macs = value.split(".")
        if not value.isascii() or len(value) > COOKIE_CHARS_MAX or len(macs) > SECRETS_MAX:
            return None
        mine = [self._mac(key, payload) for key in self._keys()]
        if not any(hmac.compare_digest(one, other) for one in mine for other in macs):
            return None
        try:
            identity = _identity_in(parse_object(_bytes(payload), CONTENT))
        except (KeyError, TypeError, ValueError):
            return None  # of another version
        issued = identity.issued_s or 0.0
        if not issued - LOGIN_S <= self._clock() < issued + self._client.session_s:
            return None
        return replace(identity, expires_s=issued + self._client.session_s)

    def _attempt(self, cookie: str, key: bytes) -> Attempt:
        state, nonce, verifier = (_text(_digest(key, name, cookie)) for name in ("state", "nonce", "verifier"))
        return Attempt(cookie, state, nonce, verifier)

    def _mac(self, key: bytes, payload: str) -> str:
        return _text(_digest(key, "session", payload, self._client.id, self.cookies.session_name))

    def _keys(self) -> list[bytes]:
        """Returns a key of each secret of the workers. What lies in the config topic makes none."""
        own = [secret for secret in self._secrets() if secret != PLAIN]
        return [hmac.digest(secret, b"cdcworker console 1", "sha256") for secret in own]


def values_of(header: str, name: str) -> Iterator[str]:
    """Yields the values of the cookies of this name."""
    return iter(list(_values(header, name))[:COOKIES_MAX])


def _values(header: str, name: str) -> Iterable[str]:
    for item in header.split(";"):
        key, _, value = item.strip().partition("=")
        if key == name:
            yield value


def too_many_roles() -> e.RestError:
    return e.RestError(403, "The roles of the login do not fit into a session", e.FORBIDDEN)


def _identity_in(content: dict[str, Any]) -> Identity:
    roles = content["roles"]
    if not isinstance(roles, list):
        raise TypeError("roles")
    return Identity(
        str(content["sub"]),
        str(content["name"]),
        tuple(map(str, roles)),
        token=str(content["jti"]),
        session=str(content["sid"]),
        issued_s=float(content["iat"]),
    )


def _digest(key: bytes, *parts: str) -> bytes:
    return hmac.digest(key, length_prefixed(parts), "sha256")


def _bytes(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
