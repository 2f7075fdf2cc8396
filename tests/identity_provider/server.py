"""A real identity provider in a process of its own: node's oidc-provider, which `make servers` installs from `locks/oidc-provider`."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import sys
import time
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qsl, urljoin, urlsplit

import httpx
from cdcworker.worker.devstack.ports import free_ports
from cdcworker.worker.devstack.process import EmbeddedServer, Program
from joserfc import jwk

from tests import plain_http
from tests.waiting import pause

SCRIPT = Path(__file__).with_name("server.mjs")
START_S_MAX = 60.0
AUDIENCE = "https://cdc.test/rest"
OTHER_AUDIENCE = "https://shop.test/rest"
CONSOLE, PUBLIC, ROBOT = "console", "public-console", "robot"
SECRET = "of the console: +%/"
ROBOT_SECRET = "of the robot"
ACCOUNTS = {
    "u-ada": {"preferred_username": "ada", "roles": ["cdc-admins", "everybody"]},
    "u-rita": {"preferred_username": "rita", "roles": ["cdc-readers"]},
    "u-nobody": {"preferred_username": "norbert", "roles": ["everybody"]},
}
"""By their subjects, which they also log in with; any password will do."""
FORM_FIELD = re.compile(r"<input[^>]*\bname=\"(\w+)\"[^>]*\bvalue=\"([^\"]*)\"")
ACTION = re.compile(r"<form[^>]*\baction=\"([^\"]*)\"")


def find_program() -> tuple[str, Path] | None:
    """Returns node and the folder of the provider; None where one is missing."""
    home, node = Path(os.environ.get("CDC_OIDC_PROVIDER") or Path(sys.prefix) / "oidc-provider"), shutil.which("node")
    return (node, home) if node and (home / "node_modules" / "oidc-provider").is_dir() else None


def new_key(id: str, algorithm: str = "RS256") -> dict[str, Any]:
    """Returns a private key for signatures, as the provider is given it."""
    given = {"kid": id, "alg": algorithm, "use": "sig"}
    if algorithm[:2] in ("RS", "PS"):
        return dict(jwk.RSAKey.generate_key(2048, given).as_dict(private=True))
    if algorithm.startswith("ES"):
        return dict(jwk.ECKey.generate_key("P-256", given).as_dict(private=True))
    return dict(jwk.OKPKey.generate_key("Ed25519", given).as_dict(private=True))


class IdentityProvider(EmbeddedServer):
    """`consoles` are the addresses of consoles that people log in to."""

    title: ClassVar[str] = "oidc-provider"

    def __init__(self, program: tuple[str, Path], directory: Path, *consoles: str) -> None:
        self._program, self._directory = program, directory
        (self.port,) = free_ports(1)
        self.issuer = f"http://localhost:{self.port}"
        self.settings: dict[str, Any] = {
            "issuer": self.issuer,
            "port": self.port,
            "keys": [new_key("first")],
            "algorithm": "RS256",
            "seconds": 3600,
            "ahead": 0,
            "accounts": ACCOUNTS,
            "robots": {ROBOT: ["cdc-admins"]},
            "clients": [*_clients(consoles)],
        }

    def start(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        file, (node, home) = self._directory / "settings.json", self._program
        file.write_text(json.dumps(self.settings))
        self._child = Program(
            "oidc-provider", [node, str(SCRIPT), str(home), str(file)], self._directory / "provider.log"
        )
        began = time.monotonic()
        while not self._answers():
            if time.monotonic() - began > START_S_MAX or not self._child.alive():
                log = (self._directory / "provider.log").read_text(errors="replace")
                self.stop()
                raise RuntimeError(f"the identity provider does not answer: {log[-1000:]}")
            pause(began)

    def _answers(self) -> bool:
        try:
            return plain_http.get(f"{self.issuer}/.well-known/openid-configuration").status_code == 200
        except httpx.HTTPError:
            return False

    def stop(self) -> None:
        if self._child is not None:
            self._child.stop(timeout_s=5)
            self._child = None

    def set(self, **settings: Any) -> None:
        """Gives it other settings, such as keys."""
        self.settings |= settings
        if self._child is not None:
            plain_http.post(f"{self.issuer}/test/settings", json=settings).raise_for_status()

    def token(self, audience: str = AUDIENCE) -> str:
        """Returns an access token of the robot."""
        form = {"grant_type": "client_credentials", "resource": audience}
        answer = plain_http.post(f"{self.issuer}/token", data=form, auth=(ROBOT, ROBOT_SECRET))
        answer.raise_for_status()
        return str(answer.json()["access_token"])


def _clients(consoles: tuple[str, ...]) -> list[dict[str, Any]]:
    console = {
        "redirect_uris": [f"{url}callback" for url in consoles] or ["http://localhost:1/ui/callback"],
        "post_logout_redirect_uris": list(consoles),
        "grant_types": ["authorization_code"],
        "response_types": ["code"],
        "scope": "openid profile roles",
    }
    robot = {"redirect_uris": [], "response_types": [], "grant_types": ["client_credentials"]}
    return [
        {**console, "client_id": CONSOLE, "client_secret": SECRET},
        {**console, "client_id": PUBLIC, "token_endpoint_auth_method": "none"},
        {**robot, "client_id": ROBOT, "client_secret": ROBOT_SECRET},
    ]


class Person:
    """Somebody with a browser that follows redirects, keeps cookies and fills in the provider's forms, as `subject`."""

    def __init__(self, subject: str) -> None:
        self.subject = subject
        self.client = httpx.Client(trust_env=False, timeout=30.0)

    def close(self) -> None:
        self.client.close()

    def go(self, url: str, end: str = "") -> httpx.Response | str:
        """Returns the page to which an address leads, the forms of the provider filled in; or the address that begins with `end`
        as soon as it leads there, without going there."""
        form: dict[str, str] | None = None
        for _ in range(20):
            if end and url.startswith(end):
                return url
            answer = self.client.get(url) if form is None else self.client.post(url, data=form)
            form = None
            if answer.is_redirect:
                url = urljoin(str(answer.url), answer.headers["location"])
            elif (action := ACTION.search(answer.text)) is not None:
                url = urljoin(str(answer.url), html.unescape(action[1]))
                form = {name: html.unescape(value) for name, value in FORM_FIELD.findall(answer.text)}
                if 'name="login"' in answer.text:
                    form |= {"login": self.subject, "password": "any"}
            else:
                return answer
        raise AssertionError(f"too many steps, the last to {url}")


def query_of(url: str) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(url).query))
