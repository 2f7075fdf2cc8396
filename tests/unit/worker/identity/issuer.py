"""An identity provider in memory: its keys, the tokens that it signs, and what it answers."""

from __future__ import annotations

import base64
import functools
import json
from pathlib import Path
from typing import Any

import yaml
from cdcworker.worker.identity.access_rules import AccessFile
from cdcworker.worker.identity.bearer import Tokens
from cdcworker.worker.identity.fetch import NoAnswer, Question
from cdcworker.worker.identity.provider import Provider
from cdcworker.worker.identity.settings import ProviderSettings
from joserfc import jwk, jws

ISSUER = "https://login.test/realms/main"
AUDIENCE = "https://cdc.test/rest"
NOW_S = 1_800_000_000.0
ALGORITHMS = list(jws.JWSRegistry.algorithms)


@functools.cache
def key_of(id: str, algorithm: str = "ES256") -> Any:
    """A private key; one for each id."""
    given = {"kid": id, "alg": algorithm, "use": "sig"}
    if algorithm[:2] in ("RS", "PS"):
        return jwk.RSAKey.generate_key(2048, given)
    if algorithm.startswith("ES"):
        curves = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521", "ES256K": "secp256k1"}
        return jwk.ECKey.generate_key(curves[algorithm], given)
    return jwk.OKPKey.generate_key("Ed25519", given)


def signed(claims: Any, key: Any, algorithm: str = "ES256", **header: Any) -> str:
    registry = jws.JWSRegistry(algorithms=ALGORITHMS, strict_check_header=False)
    shown = {"alg": algorithm, "kid": key.kid, "typ": "at+jwt", **header}
    shown = {name: value for name, value in shown.items() if value is not None}
    payload = claims if isinstance(claims, bytes) else json.dumps(claims).encode()
    return jws.serialize_compact(shown, payload, key, registry=registry)


def text_of(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def part(content: Any) -> str:
    return text_of(json.dumps(content).encode())


class Issuer:
    """`answers` holds what it answers by address; one that is missing is 404. `away`: it answers nothing."""

    def __init__(self, *keys: Any) -> None:
        self.keys = list(keys or [key_of("first")])
        self.away = False
        self.asked: list[Question] = []
        self.answers: dict[str, tuple[int, bytes]] = {}
        self.document = {
            "issuer": ISSUER,
            "jwks_uri": f"{ISSUER}/keys",
            "authorization_endpoint": f"{ISSUER}/auth",
            "token_endpoint": f"{ISSUER}/token",
            "end_session_endpoint": f"{ISSUER}/end",
            "userinfo_endpoint": f"{ISSUER}/me",
        }

    def urls(self) -> list[str]:
        return [question.url.removeprefix(ISSUER) for question in self.asked]

    async def body(self, question: Question) -> tuple[int, bytes]:
        self.asked.append(question)
        if self.away:
            raise NoAnswer("no answer (ConnectError)", is_away=True)
        if question.url == f"{ISSUER}/.well-known/openid-configuration":
            return 200, json.dumps(self.document).encode()
        if question.url == f"{ISSUER}/keys" and question.url not in self.answers:
            return 200, json.dumps({"keys": [key.as_dict(private=False) for key in self.keys]}).encode()
        return self.answers.get(question.url, (404, b"not here"))

    def claims(self, **more: Any) -> dict[str, Any]:
        """The claims of an access token that is good now; None takes one out."""
        own = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": "u-1",
            "iat": NOW_S - 10,
            "exp": NOW_S + 300,
            "jti": "t-1",
            "azp": "robot",
            "roles": ["cdc-readers"],
        }
        return {name: value for name, value in {**own, **more}.items() if value is not None}

    def token(self, *, key: Any = None, algorithm: str = "ES256", header: Any = None, **claims: Any) -> str:
        return signed(self.claims(**claims), key or self.keys[0], algorithm, **(header or {}))


class Clock:
    def __init__(self, now_s: float = NOW_S) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


RULES = {"roles": {"cdc-readers": ["read"], "cdc-admins": ["admin"], "shop": ["operate:shop-", "schemas"]}}


class World:
    """Tokens judged by settings and a file, of one issuer."""

    def __init__(self, folder: Path, issuer: Issuer | None = None, **settings: Any) -> None:
        self.issuer, self.clock = issuer or Issuer(), Clock()
        self.path = folder / "roles.yaml"
        self.write(RULES)
        self.settings = ProviderSettings(**{"issuer": ISSUER, "audience": (AUDIENCE,), **settings})
        self.provider = Provider(self.settings, self.issuer, self.clock)
        self.rules = AccessFile(self.path, self.clock)
        self.tokens = Tokens(self.settings, self.provider, self.rules, self.clock)

    def write(self, content: Any) -> None:
        scratch = self.path.with_suffix(".new")
        scratch.write_text(yaml.safe_dump(content))
        scratch.chmod(0o600)
        scratch.replace(self.path)
