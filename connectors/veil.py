"""Secrets that stand under innocuous names: a login inside of an address or of a list of settings, a salt in a key's name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final
from urllib.parse import unquote

MASK: Final = "****"
REFERENCE: Final = re.compile(r"\$\{[a-zA-Z][a-zA-Z0-9_-]*:[^}]*\}")
"""A config provider reference, `${provider:[path:]key}`; resolved in the task's own process only."""
WORDS: Final = r"passw(?:or)?d|passphrase|pwd|secret|token|credential|private[._-]?key|api[._-]?key|user\.info"
SALTED: Final = re.compile(r"(column\.mask\.hash\.(?:v2\.)?[^.]+\.with\.salt\.)(.+)", re.DOTALL)
"""Debezium puts the salt of a hash into the key's name. Who knows it can try values until one fits."""
LOGIN: Final = re.compile(r"(://(?:\$\{[^}]{0,500}\}|[^/?#@\s:$])*:)(\$\{[^}]{0,500}\}|[^/?#\s]+)(?=@)")
"""`scheme://user:password@host`"""
SETTING: Final = re.compile(
    rf"((?:{WORDS})[\w.-]{{0,40}}(?:\s{{0,9}}=|[\"']\s{{0,9}}:)\s{{0,9}})"
    r"(\"(?:[^\"\\]|\\.)*\"|'[^']*'|\$\{[^}]{0,500}\}|[^\s&;,\"'}]+)",
    re.I,
)
"""`password=…` among the parameters of an address, the settings of a login module, or the fields of a JSON text."""


def text(value: str) -> str:
    """The value as it may be shown; references stay."""
    for pattern in (LOGIN, SETTING):
        value = pattern.sub(_hidden, value)
    return value


def _hidden(found: re.Match[str]) -> str:
    secret = found[2]
    quote = secret[0] if secret[0] in "\"'" else ""
    return found[0] if REFERENCE.fullmatch(secret.strip("\"'")) else f"{found[1]}{quote}{MASK}{quote}"


def name(key: str) -> str:
    return SALTED.sub(rf"\1{MASK}", key)


def names(keys: Iterable[str]) -> dict[str, str]:
    """Each key with the name under which it is shown; no two of them the same."""
    out: dict[str, str] = {}
    taken: set[str] = set()
    for key in sorted(keys):
        shown = name(key)
        while shown in taken:
            shown += "*"
        taken.add(shown)
        out[key] = shown
    return out


def holds_mask(value: str) -> bool:
    """Whether something is masked inside of the value: it was read, and is sent back."""
    found = (match[2].strip("\"'") for pattern in (LOGIN, SETTING) for match in pattern.finditer(value))
    return MASK in found


def is_masked_name(key: str) -> bool:
    found = SALTED.fullmatch(key)
    return found is not None and re.fullmatch(rf"{re.escape(MASK)}\**", found[2]) is not None


def secrets(config: Mapping[str, str]) -> Iterator[str]:
    """Everything of that kind in a config, to be cut out of whatever is said."""
    for key, value in config.items():
        if salted := SALTED.fullmatch(key):
            yield salted[2]
        for pattern in (LOGIN, SETTING):
            for found in pattern.finditer(value):
                plain = found[2].strip("\"'")
                if not REFERENCE.fullmatch(plain):
                    yield from {plain, unquote(plain)}
