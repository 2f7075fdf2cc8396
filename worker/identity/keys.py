"""The provider's public keys, and the signatures that are made with them."""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from cdcworker.schemas.untrusted.json_text import JsonLimits, parse_object
from cdcworker.worker.identity.claims import RefusedToken

TOKEN_CHARS_MAX: Final = 24_000
"""Less than a request's head may have."""
HEADER_CHARS_MAX: Final = 2_048
KEYS_MAX: Final = 100
KEY_SET: Final = JsonLimits(bytes_max=1 << 20, depth_max=8)
CLAIMS: Final = JsonLimits(bytes_max=TOKEN_CHARS_MAX, depth_max=16)
RSA_BITS: Final = range(2_048, 8_193)
KEY_TYPES: Final[Mapping[str, str]] = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}
"""The type of the key for each family of algorithms."""
TYPES: Final = frozenset({"", "jwt", "at+jwt", "application/at+jwt"})
"""What the header may say that the token is; others prove something else, such as a logout."""


@dataclass(frozen=True, slots=True)
class TokenHeader:
    """What a token says of its signature, before that is known to hold."""

    algorithm: str
    key: str
    """The id of the key; empty: it names none."""


@dataclass(frozen=True, slots=True)
class ProviderKey:
    """A public key for signatures. `algorithm` is the only one that it is for; empty: any of its type."""

    id: str
    type: str
    algorithm: str = ""
    public: Any = field(default=None, repr=False)

    def fits(self, header: TokenHeader) -> bool:
        return (
            header.key in ("", self.id)
            and KEY_TYPES.get(header.algorithm[:2]) == self.type
            and self.algorithm in ("", header.algorithm)
        )


def is_token(text: str) -> bool:
    """Returns whether a bearer's text has the form of a signed token: three parts, the first of which begins as JSON does."""
    return text.startswith("ey") and text.count(".") == 2


def header_of(token: str, algorithms: Collection[str]) -> TokenHeader:
    """Returns what the token says of its signature. RefusedToken for a form or an algorithm that is not taken."""
    first = token.partition(".")[0]
    if len(token) > TOKEN_CHARS_MAX or len(first) > HEADER_CHARS_MAX or not token.isascii() or not is_token(token):
        raise RefusedToken("has not the form of a signed token")
    try:
        header = parse_object(_decoded(first))
    except ValueError:
        raise RefusedToken("has not the form of a signed token") from None
    algorithm, key, kind = header.get("alg"), header.get("kid", ""), header.get("typ", "")
    if not isinstance(algorithm, str) or algorithm not in algorithms:
        raise RefusedToken("is signed with an algorithm that rest.oidc.algorithms does not name")
    if "crit" in header or "b64" in header or not isinstance(key, str):
        raise RefusedToken("has a header that is not known here")
    if not isinstance(kind, str) or kind.lower() not in TYPES:
        raise RefusedToken("is no access token")
    return TokenHeader(algorithm, key)


def key_for(keys: Iterable[ProviderKey], header: TokenHeader) -> ProviderKey | None:
    """Returns the key that the token names. A token that names none fits if one key alone can be meant."""
    fitting = [key for key in keys if key.fits(header)]
    return fitting[0] if len(fitting) == 1 or (fitting and header.key) else None


def verified_claims(token: str, header: TokenHeader, key: ProviderKey) -> dict[str, Any]:
    """Returns the claims of a token that was signed with the key. RefusedToken for any other."""
    from joserfc import jws
    from joserfc.errors import JoseError

    signed, _, signature = token.rpartition(".")
    algorithm = jws.JWSRegistry.algorithms[header.algorithm]
    try:
        algorithm.check_key(key.public)
        holds = algorithm.verify(signed.encode(), _decoded(signature), key.public)
        claims = parse_object(_decoded(signed.partition(".")[2]), CLAIMS) if holds else None
    except (JoseError, ValueError, TypeError):
        claims = None
    if claims is None:
        raise RefusedToken("has a signature that does not hold")
    return claims


def _decoded(part: str) -> bytes:
    """Returns the bytes of a part. ValueError for one that is written in another way than tokens are."""
    if "=" in part:
        raise ValueError("padding")
    return base64.b64decode(part + "=" * (-len(part) % 4), b"-_", validate=True)


def parse_key_set(body: bytes) -> tuple[ProviderKey, ...]:
    """Returns the usable keys of a key set. ValueError for a body that is none; keys for other purposes are left out."""
    items = parse_object(body, KEY_SET).get("keys")
    if not isinstance(items, list):
        raise ValueError("it holds no keys")
    return tuple(_keys(items[:KEYS_MAX]))


def _keys(items: Iterable[Any]) -> Iterator[ProviderKey]:
    from joserfc import jwk
    from joserfc.errors import JoseError

    for item in items:
        if not isinstance(item, dict) or item.get("kty") not in KEY_TYPES.values() or not _is_for_signatures(item):
            continue
        public = {name: value for name, value in item.items() if name in ("kty", "n", "e", "crv", "x", "y")}
        try:
            if item["kty"] == "RSA" and int.from_bytes(_decoded(item["n"])).bit_length() not in RSA_BITS:
                continue
            key = jwk.import_key(public)
        except (JoseError, ValueError, TypeError, KeyError):
            continue
        yield ProviderKey(str(item.get("kid") or ""), item["kty"], str(item.get("alg") or ""), key)


def _is_for_signatures(item: Mapping[str, Any]) -> bool:
    operations = item.get("key_ops")
    return item.get("use", "sig") == "sig" and (not isinstance(operations, list) or "verify" in operations)
