"""Values that are not handed on as they are: masked, hashed with a salt, or cut, by Debezium's `column.*` keys.

A rule that cannot be applied is an error: a mask that does nothing would let through what it was meant to hide.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cdcworker.connectors.capture.column_mapping import MappedType, Parser
from cdcworker.connectors.capture.errors import CaptureErrors
from cdcworker.connectors.config.definition import ConfigKey, regex_list
from cdcworker.schemas import patterns
from cdcworker.schemas.errors import CdcError

CHARS_MAX = 10_000
_MASK = re.compile(r"column\.mask\.with\.(\d+)\.chars")
_TRUNCATE = re.compile(r"column\.truncate\.to\.(\d+)\.chars")
_HASH = re.compile(r"column\.mask\.hash\.(v2\.)?([^.]+)\.with\.salt\.(.+)")
_STARTS = ("column.mask.", "column.truncate.")


@dataclass(frozen=True, slots=True)
class MaskRule:
    """One `column.*` key: what is done with the columns that match one of `patterns`."""

    key: str
    patterns: tuple[str, ...]

    def chooses(self, column: str) -> bool:
        return patterns.matches_any(self.patterns, column, ignore_case=True)


@dataclass(frozen=True, slots=True)
class ColumnMasks:
    """The rules of one configuration; the first that chooses a column holds for it."""

    errors: CaptureErrors
    rules: tuple[MaskRule, ...] = ()

    def rule(self, schema: str, table: str, column: str) -> MaskRule | None:
        """The one that holds for a column."""
        name = f"{schema}.{table}.{column}"
        return next((rule for rule in self.rules if rule.chooses(name)), None)

    def apply(
        self, mapped: MappedType, schema: str, table: str, column: str, *, length: int, in_key: bool
    ) -> MappedType:
        """`length` is that of a character type, 0 where it has none: a hash is cut to it."""
        rule = self.rule(schema, table, column)
        if rule is None:
            return mapped
        where = {"table": f"{schema}.{table}", "column": column, "key": rule.key}
        kind = mapped.avro["type"] if isinstance(mapped.avro, dict) else mapped.avro
        cut, hashed = _TRUNCATE.fullmatch(rule.key), _HASH.fullmatch(rule.key)
        if cut and kind != "string" and mapped.avro != "bytes":
            # As in Debezium: numbers, bits and structures have no length that could be cut.
            return mapped
        if kind != "string" and not (cut and kind == "bytes"):
            raise CdcError(self.errors.mask_unfit, "only values that are written as text can be masked", where=where)
        if in_key and not hashed:
            raise CdcError(self.errors.mask_unfit, "the column is part of the key, rows would share one", where=where)
        if cut:
            return _cut(mapped, int(cut.group(1)), length)
        if hashed:
            version, algorithm, salt = hashed.groups()
            form = plain_bytes if version else java_bytes
            return MappedType(_masked(), _hash(algorithm, salt.encode(), form, length))
        found = _MASK.fullmatch(rule.key)
        stars = "*" * int(found.group(1) if found else 0)
        return MappedType(_masked(), lambda _: stars)


def _masked(**parameters: str) -> dict[str, Any]:
    return {"type": "string", "connect.parameters": parameters or {"masked": "true"}}


def _cut(mapped: MappedType, size: int, length: int) -> MappedType:
    if 0 < length <= size:
        return mapped
    inner = mapped.parse
    if mapped.avro == "bytes":
        return MappedType("bytes", lambda value: inner(value)[:size])
    return MappedType(_masked(truncateLength=str(size)), lambda value: inner(value)[:size])


def _hash(algorithm: str, salt: bytes, form: Callable[[str], bytes], length: int) -> Parser:
    name = digest_name(algorithm)
    size = length or None

    def parse(value: bytes) -> str:
        return hashlib.new(name, salt + form(value.decode())).hexdigest()[:size]

    return parse


def digest_name(algorithm: str) -> str:
    """Java's name of a digest as Python's; ValueError when there is none."""
    name = algorithm.lower()
    name = name.replace("sha-", "sha") if not name.startswith("sha3") else name.replace("-", "_")
    name = name.replace("/", "_")
    hashlib.new(name)
    return name


def plain_bytes(text: str) -> bytes:
    return text.encode()


def java_bytes(text: str) -> bytes:
    """A string as Java serialises it: what the first version of Debezium's hash digests."""
    data = text.encode()
    if len(data) != len(text) and any(ord(char) > 0xFFFF for char in text):
        # Modified UTF-8: each half of a surrogate pair by itself.
        units = text.encode("utf-16-be")
        halves = "".join(chr(int.from_bytes(units[i : i + 2], "big")) for i in range(0, len(units), 2))
        data = halves.encode("utf-8", "surrogatepass")
    size = len(data)
    head = b"t" + size.to_bytes(2, "big") if size < 65536 else b"|" + size.to_bytes(8, "big")
    return b"\xac\xed\x00\x05" + head + data


# -- configuration ----------------------------------------------------------------------------------------------------


def mask_keys(config: Mapping[str, str]) -> Iterable[ConfigKey]:
    """The keys of this config that mask columns."""
    for name in config:
        if isinstance(name, str) and name.startswith(_STARTS):
            problem = _problem(name)
            yield ConfigKey(
                name, "LIST", group="Tables", validator=regex_list if problem is None else _refusal(problem),
                doc="Columns by their full names, as anchored regular expressions.",
            )  # fmt: skip


def _refusal(problem: str) -> Callable[[Any], str]:
    return lambda _: problem


def _problem(name: str) -> str | None:
    found = _HASH.fullmatch(name)
    if found:
        try:
            digest_name(found.group(2))
        except ValueError:
            return "names a digest that is not known"
        return None
    size = _MASK.fullmatch(name) or _TRUNCATE.fullmatch(name)
    if size is None:
        return "is none of column.mask.with.N.chars, column.truncate.to.N.chars, column.mask.hash.ALG.with.salt.S"
    number = int(size.group(1))
    if number > CHARS_MAX or (number == 0 and name.startswith("column.truncate.")):
        return f"expects a number of characters up to {CHARS_MAX}"
    return None


def masks_of(raw: Mapping[str, Any], errors: CaptureErrors) -> ColumnMasks:
    """The masks of a parsed configuration."""
    return ColumnMasks(
        errors, tuple(MaskRule(name, tuple(raw[name])) for name in raw if name.startswith(_STARTS) and raw[name])
    )
