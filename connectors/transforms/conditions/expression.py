"""Expressions in CEL over records, evaluated by the library `cel`; those in Groovy that mean the same are taken too."""

from __future__ import annotations

from typing import Any, Final

from cdcworker.connectors.transforms.bounded_cache import BoundedCache
from cdcworker.connectors.transforms.conditions.expression_text import (
    ExpressionPath,
    Language,
    NoExpressionError,
    Rewritten,
    rewritten,
)
from cdcworker.connectors.transforms.conditions.field_paths import Read, reader_of
from cdcworker.connectors.transforms.data import ConnectRecord, ConnectSchema, DataError
from cdcworker.connectors.transforms.transform import SCHEMAS_MAX

_Readers = tuple[ConnectSchema | None, ConnectSchema | None, tuple[tuple[str, Read], ...]]


class Expression:
    """An expression that is evaluated for each record. Fields are read by the schemas that a record has.

    A field that is null, or behind a null, is null in the expression. One that the schema does not have is an error.
    """

    def __init__(self, text: str, language: Language) -> None:
        """Raises NoExpressionError for a text that is no expression."""
        found = rewritten(text, language)
        self._program = _compiled(found)
        self._paths: tuple[tuple[str, ExpressionPath], ...] = tuple(found.paths.items())
        self._readers: BoundedCache[tuple[int, int], _Readers] = BoundedCache(SCHEMAS_MAX)

    def evaluate(self, record: ConnectRecord) -> Any:
        """Returns the value of the expression for a record. Raises DataError, without values of the record."""
        variables = {name: read(record) for name, read in self._readers_of(record)}
        try:
            return self._program.execute(variables)
        except (TypeError, ValueError, RuntimeError, LookupError, ArithmeticError) as error:
            raise DataError(_explained(error)) from None

    def _readers_of(self, record: ConnectRecord) -> tuple[tuple[str, Read], ...]:
        place = (id(record.key_schema), id(record.value_schema))
        found = self._readers.get(place)
        if found is None:
            readers = tuple((name, reader_of(path, record)) for name, path in self._paths)
            found = self._readers[place] = (record.key_schema, record.value_schema, readers)
        return found[2]


def _explained(error: Exception) -> str:
    """Returns why an expression has no value: the library's own text may have values of the record in it."""
    if isinstance(error, TypeError):
        return "The expression compares or combines values of types that it cannot: a null by order, or a text with a number"
    if isinstance(error, ArithmeticError):
        return "The expression divides by zero, or its number is too large"
    return "The expression has no value for this record"


def _compiled(found: Rewritten) -> Any:
    # It is imported by those alone whose config has an expression: it takes time and memory.
    import cel

    try:
        program = cel.compile(found.text)
    except ValueError:
        raise NoExpressionError("is no expression of CEL") from None
    others = set(program.variables()) - set(found.paths) - found.bound
    if others:
        raise NoExpressionError(f"names {min(others)}; expects value, key, topic and headers")
    unknown = {name for name in program.functions() if name.isidentifier()} - FUNCTIONS
    if unknown:
        raise NoExpressionError(f"calls {min(unknown)}, which is no function of CEL")
    return program


FUNCTIONS: Final = frozenset({
    "all", "bool", "bytes", "contains", "double", "duration", "dyn", "endsWith", "exists", "exists_one", "existsOne",
    "filter", "getDate", "getDayOfMonth", "getDayOfWeek", "getDayOfYear", "getFullYear", "getHours",
    "getMilliseconds", "getMinutes", "getMonth", "getSeconds", "has", "int", "map", "matches", "max", "min",
    "optional", "size", "startsWith", "string", "timestamp", "type", "uint",
})  # fmt: skip
"""The functions and methods of CEL's standard library."""


def problem(text: str, language: Language) -> str | None:
    """Returns what is wrong with an expression; None if nothing is."""
    try:
        Expression(text, language)
    except NoExpressionError as error:
        return str(error)
    return None
