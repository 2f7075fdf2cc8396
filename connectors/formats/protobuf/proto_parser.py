"""Reads .proto files that others have written, as far as their messages go. Services, options and extensions are passed over."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from cdcworker.connectors.formats.protobuf.message_type import EnumType, FieldType, MessageType, ProtoFile

DEPTH_MAX: Final = 32
FIELDS_MAX: Final = 10_000
_TOKEN: Final = re.compile(
    r"""\s+|//[^\n]*+|/\*.*?\*/|(?P<text>"(?:[^"\\\n]|\\.)*+"|'(?:[^'\\\n]|\\.)*+')"""
    r"""|(?P<word>[A-Za-z_.0-9][A-Za-z_.0-9+-]*+)|(?P<sign>[-+{}\[\]()<>=;,:/])""",
    re.DOTALL,
)
_LABELS: Final = frozenset(("optional", "repeated", "required"))
_BRACKETS: Final = {"{": "}", "[": "]", "(": ")", "<": ">"}


class ProtoRefused(ValueError):
    """A text that is no .proto file. The message quotes nothing of it."""


def parse_proto(text: str) -> ProtoFile:
    """Returns what a file says. Raises ProtoRefused."""
    return _Parser(text).file()


def _tokens(text: str) -> Iterator[str]:
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise ProtoRefused("a character that no .proto file has")
        at = found.end()
        if found.lastgroup:
            yield found[0]


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._at = 0
        self._fields = 0

    # Tokens

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _next(self) -> str:
        token = self._peek()
        if not token:
            raise ProtoRefused("the file ends too early")
        self._at += 1
        return token

    def _expect(self, wanted: str) -> None:
        if self._next() != wanted:
            raise ProtoRefused("the file is not well-formed")

    def _take(self, wanted: str) -> bool:
        is_next = self._peek() == wanted
        self._at += is_next
        return is_next

    def _number(self) -> int:
        sign = -1 if self._take("-") else 1
        try:
            word = self._next()
            is_octal = len(word) > 1 and word[0] == "0" and word.isdigit()
            return sign * int(word, 8 if is_octal else 0)
        except ValueError:
            raise ProtoRefused("a number is none") from None

    def _skip(self) -> None:
        """Passes over a statement: to its semicolon, or to the end of its block."""
        while True:
            word = self._next()
            if word == ";":
                return
            if word in _BRACKETS:
                self._skip_block(_BRACKETS[word])
                if word == "{":
                    self._take(";")
                    return

    def _skip_block(self, end: str) -> None:
        ends = [end]
        while ends:
            token = self._next()
            if token == ends[-1]:
                ends.pop()
            elif token in ("{", "[", "("):
                ends.append(_BRACKETS[token])

    # Statements

    def file(self) -> ProtoFile:
        package, syntax = "", "proto2"
        messages: list[MessageType] = []
        enums: list[EnumType] = []
        imports: list[str] = []
        while self._peek():
            word = self._next()
            if word == "syntax":
                self._expect("=")
                syntax = self._next()[1:-1]
                self._expect(";")
            elif word == "package":
                package = self._next()
                self._expect(";")
            elif word == "import":
                name = self._next()
                imports.append((self._next() if name in ("public", "weak") else name)[1:-1])
                self._expect(";")
            elif word == "message":
                messages.append(self._message(0))
            elif word == "enum":
                enums.append(self._enum())
            elif word != ";":
                self._at -= 1
                self._skip()
        return ProtoFile(package, tuple(messages), tuple(imports), tuple(enums), syntax)

    def _message(self, depth: int) -> MessageType:
        if depth > DEPTH_MAX:
            raise ProtoRefused("messages are nested too deeply")
        name = self._next()
        fields: list[FieldType] = []
        messages: list[MessageType] = []
        enums: list[EnumType] = []
        self._expect("{")
        while not self._take("}"):
            word = self._peek()
            if word == "message" and self._is_named_block():
                self._at += 1
                messages.append(self._message(depth + 1))
            elif word == "enum" and self._is_named_block():
                self._at += 1
                enums.append(self._enum())
            elif word == "oneof" and self._is_named_block():
                self._at += 1
                fields += self._oneof()
            elif word in ("option", "reserved", "extensions", "extend", ";"):
                self._skip()
            else:
                fields.append(self._field())
        return MessageType(name, tuple(fields), tuple(messages), tuple(enums))

    def _is_named_block(self) -> bool:
        return self._tokens[self._at + 2 : self._at + 3] == ["{"]

    def _oneof(self) -> Iterator[FieldType]:
        name = self._next()
        self._expect("{")
        while not self._take("}"):
            if self._peek() in ("option", ";"):
                self._skip()
            else:
                yield self._field(oneof=name)

    def _enum(self) -> EnumType:
        name = self._next()
        values: dict[int, str] = {}
        self._expect("{")
        while not self._take("}"):
            if self._peek() in ("option", "reserved", ";"):
                self._skip()
                continue
            word = self._next()
            self._expect("=")
            values.setdefault(self._number(), word)
            self._options()
            self._expect(";")
        return EnumType(name, values)

    def _field(self, oneof: str = "") -> FieldType:
        self._fields += 1
        if self._fields > FIELDS_MAX:
            raise ProtoRefused("the file has too many fields")
        label = self._next() if self._peek() in _LABELS else ""
        kind, map_types = self._next(), None
        if kind == "group":
            raise ProtoRefused("a group, which only the second version has")
        if kind == "map" and self._take("<"):
            key = self._next()
            self._expect(",")
            map_types = (key, self._next())
            self._expect(">")
            kind = ""
        name = self._next()
        self._expect("=")
        number = self._number()
        params = self._options()
        self._expect(";")
        return FieldType(name, number, kind, label, params, oneof, map_types)

    # Options

    def _options(self) -> dict[str, str]:
        """Returns the parameters of Confluent's option, and passes over all others."""
        begin = self._at
        if not self._take("["):
            return {}
        self._skip_block("]")
        found = self._tokens[begin : self._at]
        params: dict[str, str] = {}
        if not any(token.endswith("confluent.field_meta") for token in found):
            return params
        entry: dict[str, str] = {}
        for number, word in enumerate(found):
            if word in ("key", "value") and found[number + 1 : number + 2] == [":"]:
                entry[word] = found[number + 2].strip("\"'")
            elif word == "}" and len(entry) == 2:
                params[entry["key"]] = entry["value"]
                entry = {}
        return params
