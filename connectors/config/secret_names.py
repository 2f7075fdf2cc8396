"""Secrets that stand under innocuous names: a login inside of an address or of a list of settings, a salt in a key's name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final
from urllib.parse import unquote

MASK: Final = "****"
REFERENCE: Final = re.compile(r"\$\{[a-zA-Z][a-zA-Z0-9_-]*:(?:[^}$]|\$(?!\{))*\}")
"""A config provider reference, `${provider:[path:]key}`; resolved in the task's own process only. No other one begins
inside of it, so that a search takes a time that is linear in the text."""
_BRACED: Final = r"\$\{(?:[^}$]|\$(?!\{)){0,500}\}"
WORDS: Final = r"passw(?:or)?d|passphrase|pwd|secret|token|credential|private[._-]?key|api[._-]?key|user\.info"
SALTED: Final = re.compile(r"(column\.mask\.hash\.(?:v2\.)?[^.]+\.with\.salt\.)(.+)", re.DOTALL)
"""Debezium puts the salt of a hash into the key's name. Who knows it can try values until one fits."""
LOGIN: Final = re.compile(
    rf"(://(?:{_BRACED}|[^/?#\s:$]|\$(?!{_BRACED[2:]}))*:)"
    rf"({_BRACED}|[^/?#\s]+|(?!(?:[0-9]{{1,5}}|{_BRACED})?[/?#,;])(?:(?!://)\S)+?)(?=@)"
)
"""`scheme://user:password@host`. A password may hold what should be encoded, `/` too, unless a port stands before it."""
SETTING: Final = re.compile(
    rf"((?:{WORDS})[\w.-]{{0,40}}+(?:\s{{0,9}}=|\\{{0,7}}[\"']\s{{0,9}}:)\s{{0,9}})"
    r"(\"(?:[^\"\\]|\\.|\"\")*\"?|'(?:[^'\\]|\\.|'')*'?|(?P<quote>\\{1,7}[\"'])(?:(?!(?<!\\)(?P=quote)).)*(?P=quote)?"
    rf"|{_BRACED}|(?:\\.|[^\s&;,\"'}}\\])+)",
    re.I | re.DOTALL,
)
"""`password=…` among the parameters of an address, the settings of a login module, or the fields of a JSON text, which
may be a text inside of another one: its quotes are escaped then. A quote that nobody closes reaches to the end."""
_STEMS: Final = ("passw", "passphrase", "pwd", "secret", "token", "credent", "vate", "ap", "user")
"""What a text without regard to case must hold for SETTING to find anything. Letters whose cases differ from alphabet to
alphabet (the Turkish i) are left out."""
PIECE: Final = re.compile(r"[^\s:/@?&=;,\"'.()\[\]{}]+")


def text(value: str) -> str:
    """The value as it may be shown; references stay."""
    for pattern in _patterns_for(value):
        value = pattern.sub(_hidden, value)
    return value


def _patterns_for(value: str) -> Iterator[re.Pattern[str]]:
    """Yields the patterns that may find something: most values hold nothing, and a long one is looked at quickly."""
    if "=" in value or ":" in value:
        folded = value.casefold()
        if any(stem in folded for stem in _STEMS):
            yield SETTING
    if "://" in value and "@" in value:
        yield LOGIN


def _hidden(found: re.Match[str]) -> str:
    secret = found[2]
    opened = re.match(r"\\{0,7}[\"']", secret)
    quote = opened[0] if opened else ""
    return found[0] if REFERENCE.fullmatch(_bare(secret)) else f"{found[1]}{quote}{MASK}{quote}"


def _bare(secret: str) -> str:
    return secret.strip("\"'\\")


def name(key: str) -> str:
    return SALTED.sub(rf"\1{MASK}", key)


def names(keys: Iterable[str]) -> dict[str, str]:
    """Each key with the name under which it is shown; no two of them the same."""
    out: dict[str, str] = {}
    taken: set[str] = set()
    stars: dict[str, int] = {}
    for key in sorted(keys):
        shown = plain = name(key)
        count = stars.get(plain, 0)
        while shown in taken:
            count += 1
            shown = plain + "*" * count
        stars[plain] = count
        taken.add(shown)
        out[key] = shown
    return out


def holds_mask(value: str) -> bool:
    """Whether something is masked inside of the value: it was read, and is sent back."""
    if MASK not in value:
        return False
    found = (_bare(match[2]) for pattern in _patterns_for(value) for match in pattern.finditer(value))
    return MASK in found


def is_masked_name(key: str) -> bool:
    found = SALTED.fullmatch(key)
    return found is not None and re.fullmatch(rf"{re.escape(MASK)}\**", found[2]) is not None


def secrets(config: Mapping[str, str]) -> Iterator[str]:
    """Everything of that kind in a config, to be cut out of whatever is said."""
    for key, value in config.items():
        if salted := SALTED.fullmatch(key):
            yield salted[2]
        for pattern in _patterns_for(value):
            for found in pattern.finditer(value):
                plain = _bare(found[2])
                if not REFERENCE.fullmatch(plain):
                    yield from _forms(plain)


def _forms(plain: str) -> set[str]:
    """As it is written and as it is meant."""
    once = re.sub(r"\\(.)|'(')|\"(\")", lambda found: found[1] or found[2] or found[3], plain, flags=re.DOTALL)
    return {plain, unquote(plain), once, re.sub(r"\\(.)", r"\1", once, flags=re.DOTALL)}


def untold(config: Mapping[str, str], shown: Iterable[str]) -> Iterator[str]:
    """The same, but for what is read openly in values that are shown: that would cut up what is said about those."""
    told = {word for value in shown for word in (value, *PIECE.findall(value))}
    return (secret for secret in secrets(config) if secret not in told)
