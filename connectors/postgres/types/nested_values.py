"""Text forms that hold other values: arrays of any dimension, composites, hstore, vectors, points and geometries."""

from __future__ import annotations

import json
import re
import struct
from binascii import unhexlify
from collections.abc import Callable, Sequence
from typing import Any

from cdcworker.connectors.capture.column_mapping import Parser


class ShapedArray(list[Any]):
    """An array that its column's type does not describe: it has other dimensions, or does not count from one.

    It holds the elements in row-major order, in lists as deep as the type says; `bounds` is the true shape, as
    PostgreSQL writes it: `[2:3]`, `[1:2][0:1]`.
    """

    __slots__ = ("bounds",)

    def __init__(self, items: Sequence[Any], bounds: str) -> None:
        super().__init__(items)
        self.bounds = bounds


def array(parse: Parser, delimiter: bytes = b",", depth: int = 1) -> Parser:
    """Parser of an array; `depth` is the number of dimensions that its type declares."""
    token = re.compile(
        rb'[{}]|"((?:[^"\\]|\\.)*)"|([^"{}' + re.escape(delimiter) + rb"]+)|" + re.escape(delimiter), re.S
    )

    def parse_array(value: bytes) -> list[Any]:
        if depth > 1 or value[1:2] == b"{" or value[:1] == b"[":
            return _shaped(value, token, parse, depth)
        inner = value[1:-1]
        if not inner:
            return []
        if b'"' not in inner:
            return [None if part == b"NULL" else parse(part) for part in inner.split(delimiter)]
        return _nested(value, token, parse)

    return parse_array


def _shaped(value: bytes, token: re.Pattern[bytes], parse: Parser, depth: int) -> list[Any]:
    head, body = b"", value
    if value[:1] == b"[":
        head, _, body = value.partition(b"=")
    nested = _nested(body, token, parse)
    dimensions = len(body) - len(body.lstrip(b"{"))
    if not nested or (not head and dimensions == depth):
        return nested
    bounds, flat = "", nested
    for level in range(dimensions):
        bounds += f"[1:{len(nested)}]"
        if level + 1 < dimensions:
            nested, flat = nested[0], [item for row in flat for item in row]
    if head:
        bounds = head.decode()
    for _ in range(depth - 1):
        flat = [flat]
    return ShapedArray(flat, bounds)


def _nested(body: bytes, token: re.Pattern[bytes], parse: Parser) -> list[Any]:
    root: list[Any] = []
    stack = [root]
    size = 0
    for found in token.finditer(body):
        text, quoted, plain = found.group(), found.group(1), found.group(2)
        size += len(text)
        if quoted is not None:
            stack[-1].append(parse(re.sub(rb"\\(.)", rb"\1", quoted, flags=re.S)))
        elif plain is not None:
            stack[-1].append(None if plain == b"NULL" else parse(plain))
        elif text == b"{":
            inner: list[Any] = []
            stack[-1].append(inner)
            stack.append(inner)
        elif text == b"}":
            stack.pop()
    if size != len(body) or len(stack) != 1 or len(root) != 1:
        raise ValueError("not an array")
    whole: list[Any] = root[0]
    return whole


_COMPOSITE_FIELD = re.compile(rb'(?:"((?:[^"\\]|\\.|"")*)"|([^",()]*))([,)])', re.S)
_DOUBLED = re.compile(rb'\\(.)|""', re.S)


def composite_texts(value: bytes) -> list[bytes | None]:
    """The fields of `(1,"x y",)` as text; None for NULL."""
    out: list[bytes | None] = []
    p = 1
    while True:
        found = _COMPOSITE_FIELD.match(value, p)
        if not found:
            raise ValueError("not a composite")
        quoted, plain, end = found.groups()
        if quoted is not None:
            out.append(_DOUBLED.sub(lambda match: match.group(1) or b'"', quoted))
        else:
            out.append(plain or None)
        p = found.end()
        if end == b")":
            break
    if p != len(value) or value[:1] != b"(":
        raise ValueError("not a composite")
    return out


def composite(fields: Sequence[tuple[str, Parser]], shorter: Callable[[], None], longer: Callable[[], None]) -> Parser:
    """Parser of a composite as a record; `shorter` and `longer` are told of a value with fewer and with more fields."""

    def parse_composite(value: bytes) -> dict[str, Any]:
        texts = composite_texts(value) if value != b"()" or len(fields) == 1 else []
        if len(texts) != len(fields):
            (shorter if len(texts) < len(fields) else longer)()
            texts += [None] * (len(fields) - len(texts))
        return {name: None if text is None else parse(text) for (name, parse), text in zip(fields, texts, strict=False)}

    return parse_composite


class EnumLabels:
    """Parser of an enum. A label that it does not know is told to `stale` once, and taken as it is."""

    __slots__ = ("_known", "_stale")

    def __init__(self, labels: Sequence[str], stale: Callable[[], None]) -> None:
        self._known = {label.encode(): label for label in labels}
        self._stale = stale

    def __call__(self, value: bytes) -> str:
        try:
            return self._known[value]
        except KeyError:
            self._stale()
            return self._known.setdefault(value, value.decode())


# -- single values ----------------------------------------------------------------------------------------------------

_POINT = struct.Struct("<BIdd").pack


def point(value: bytes) -> dict[str, Any]:
    x, y = map(float, value[1:-1].split(b","))
    return {"x": x, "y": y, "wkb": _POINT(1, 1, x, y), "srid": None}


_HAS_SRID = 0x20000000


def geometry(value: bytes) -> dict[str, Any]:
    """PostGIS: EWKB in hex; the SRID is in it where there is one."""
    wkb = unhexlify(value)
    order = "<" if wkb[0] else ">"
    kind, srid = struct.unpack_from(order + "Ii", wkb + bytes(4), 1)
    return {"wkb": wkb, "srid": srid if kind & _HAS_SRID else None}


def number_list(value: bytes) -> list[float]:
    """pgvector's `[1,2,3]`."""
    inner = value[1:-1]
    return [float(part) for part in inner.split(b",")] if inner else []


def sparse_vector(value: bytes) -> dict[str, Any]:
    """pgvector's `{1:1.5,3:2}/5`."""
    inner, _, dimensions = value.rpartition(b"/")
    entries = [part.split(b":") for part in inner[1:-1].split(b",")] if inner != b"{}" else []
    vector = [{"key": int(key), "value": float(number)} for key, number in entries]
    return {"dimensions": int(dimensions), "vector": vector}


_HSTORE = re.compile(rb'"((?:[^"\\]|\\.)*)"=>(?:"((?:[^"\\]|\\.)*)"|NULL)(?:, |$)', re.S)


def hstore_map(value: bytes) -> dict[str, str | None]:
    out: dict[str, str | None] = {}
    p = 0
    while p < len(value):
        found = _HSTORE.match(value, p)
        if not found:
            raise ValueError("not an hstore")
        key, item = found.groups()
        out[_unquote(key)] = None if item is None else _unquote(item)
        p = found.end()
    return out


def hstore_json(value: bytes) -> str:
    return json.dumps(hstore_map(value), ensure_ascii=False, separators=(",", ":"))


def _unquote(value: bytes) -> str:
    return re.sub(rb"\\(.)", rb"\1", value, flags=re.S).decode()
