"""The statements of a comparison, composed of quoted names; `%` in names is doubled, since all of them take parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from cdcworker.connectors.verify.canonical_text import BYTES, INTEGER, NUMERIC, joined
from cdcworker.connectors.verify.plan import ComparedColumn, ComparisonPlan, Key, SideTable

Side = Literal["source", "target"]
FINE: Final = 256
"""Into how many parts a range is taken apart that differs."""
CATALOG: Final = """
with recursive typed as (
    select a.attnum, a.attname, a.atttypid as oid, a.atttypmod as mod, a.attnotnull, a.attgenerated
    from pg_attribute a where a.attrelid = %s::oid and a.attnum > 0 and not a.attisdropped
    union all
    select d.attnum, d.attname, t.typbasetype, t.typtypmod, d.attnotnull, d.attgenerated
    from typed d join pg_type t on t.oid = d.oid where t.typtype = 'd'
)
select d.attname::text, t.typname::text, t.typtype::text, coalesce(e.typname, '')::text, format_type(d.oid, d.mod),
       d.attgenerated <> '', d.attnotnull
from typed d join pg_type t on t.oid = d.oid
left join pg_type e on e.oid = t.typelem and t.typoutput = 'pg_catalog.array_out'::regproc
where t.typtype <> 'd' order by d.attnum"""
RELATION: Final = """
select c.oid::bigint, c.relkind = 'r', greatest(c.reltuples, 0)::bigint
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where n.nspname = %s and c.relname = %s and c.relkind in ('r', 'p')"""


@dataclass(frozen=True, slots=True)
class KeySpan:
    """Rows whose key lies behind `low` up to `high` (None: no bound), dealt out by the key's hash into `coarse` parts."""

    low: Key | None = None
    high: Key | None = None
    coarse: int = 1


@dataclass(frozen=True, slots=True)
class Statement:
    text: str
    parameters: tuple[object, ...]


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""').replace("%", "%%") + '"'


class StatementBuilder:
    """Statements about one table of one side. `encoding` is the database's."""

    def __init__(self, plan: ComparisonPlan, side: Side, encoding: str = "UTF8") -> None:
        table = plan.source if side == "source" else plan.target
        assert table is not None
        self._side = side
        self._recode = encoding not in ("UTF8", "SQL_ASCII")
        self._from = f"{'ONLY ' if table.only else ''}{quoted(table.schema)}.{quoted(table.name)} t"
        self._items = plan.key
        self._key = [self._text(item) for item in plan.key]
        self._names = [f"t.{quoted(item.name)}" for item in plan.key]
        self._literals = [self._literal(item) for item in plan.key]
        self._columns = [self._text(item) for item in plan.columns]
        self._version = _version(side, table)
        self._chosen = [f"t.{quoted(table.hides)} IS NOT TRUE"] if table.hides else []
        self._chosen += [f"t.{quoted(table.shows)}"] if table.shows else []
        self._hash = f"('x' || left({self._md5(joined(self._columns))}, 16))::bit(64)::bigint"

    def sums(self, span: KeySpan, chosen: Sequence[int] | None = None) -> Statement:
        """(part, rows, sum of hashes): the parts of the span, or finer ones of the `chosen` parts."""
        where, parameters = self._where(span)
        coarse, fine = self._parts(span)
        part = coarse if chosen is None else fine
        if chosen is not None:
            where.append(f"{coarse} = ANY (%s)")
            parameters.append(list(chosen))
        inner = f"SELECT {part} AS part, {self._hash} AS h FROM {self._from}{_all(where)}"
        text = f"SELECT part, count(*), coalesce(sum(h), 0) FROM ({inner}) hashed GROUP BY part"
        return Statement(text, tuple(parameters))

    def rows(self, span: KeySpan, chosen: Sequence[int]) -> Statement:
        """(key, hash, version) of the rows of finer parts."""
        where, parameters = self._where(span)
        where.append(f"{self._parts(span)[1]} = ANY (%s)")
        parameters.append(list(chosen))
        return Statement(f"{self._select()} FROM {self._from}{_all(where)}", tuple(parameters))

    def rows_of(self, keys: Sequence[Key]) -> Statement:
        """(key, hash, version, a short hash of each column) of these rows, found by their keys."""
        aliases = [f"k{number}" for number in range(len(self._names))]
        on = " AND ".join(
            f"{name} = {literal.replace('%s', 'w.' + alias)}"
            for name, literal, alias in zip(self._names, self._literals, aliases, strict=True)
        )
        arrays = ", ".join("%s::text[]" for _ in aliases)
        columns = ", ".join(f"coalesce(left({self._md5(text)}, 8), '~')" for text in self._columns)
        text = (
            f"{self._select()}, ARRAY[{columns}]::text[]"
            f" FROM unnest({arrays}) w ({', '.join(aliases)}) JOIN {self._from} ON {on}{_all(self._chosen)}"
        )
        return Statement(text, tuple([key[number] for key in keys] for number in range(len(aliases))))

    def key_texts(self, keys: Sequence[Key]) -> Statement:
        """(number of the key, its texts as the database writes them, whether they are the key): a text that the column's type
        would have to cut or to round is not."""
        aliases = [f"k{number}" for number in range(len(self._names))]
        values = [
            f"({literal.replace('%s', 'w.' + alias)})::{_declared(item, self._side)}"
            for literal, alias, item in zip(self._literals, aliases, self._items, strict=True)
        ]
        inner = ", ".join(f"{value} AS v{number}" for number, value in enumerate(values))
        texts = ", ".join(f"format('%%s', v{number})" for number in range(len(values)))
        same = " AND ".join(
            f"{self._template(item).format(f'v{number}')} = {alias}"
            for number, (item, alias) in enumerate(zip(self._items, aliases, strict=True))
        )
        arrays = ", ".join("%s::text[]" for _ in aliases)
        text = (
            f"SELECT n, ARRAY[{texts}]::text[], {same} FROM (SELECT n, {', '.join(aliases)}, {inner}"
            f" FROM unnest(%s::int[], {arrays}) w (n, {', '.join(aliases)})) k"
        )
        return Statement(text, (list(range(len(keys))), *([key[at] for key in keys] for at in range(len(aliases)))))

    def bound(self, after: Key | None, rows: int) -> Statement:
        """The key of the row that stands so many rows behind a key."""
        where, parameters = self._where(KeySpan(after))
        names = ", ".join(self._names)
        text = f"SELECT ARRAY[{', '.join(self._key)}]::text[] FROM {self._from}{_all(where)} ORDER BY {names} OFFSET %s LIMIT 1"
        return Statement(text, (*parameters, rows - 1))

    # -- pieces -------------------------------------------------------------------------------------------------------

    def _select(self) -> str:
        return f"SELECT ARRAY[{', '.join(self._key)}]::text[], {self._hash}, {self._version}"

    def _where(self, span: KeySpan) -> tuple[list[str], list[object]]:
        where, parameters = list(self._chosen), list[object]()
        for sign, bound in ((">", span.low), ("<=", span.high)):
            if bound is not None:
                where.append(f"({', '.join(self._names)}) {sign} ({', '.join(self._literals)})")
                parameters += bound
        return where, parameters

    def _parts(self, span: KeySpan) -> tuple[str, str]:
        """Returns the SQL for the coarse and the fine part that a row lies in, by digits of one hash that have nothing to do
        with each other."""
        key = self._md5(joined(self._key))
        coarse = f"mod(('x' || left({key}, 8))::bit(32)::bigint, {span.coarse})::int" if span.coarse > 1 else "0"
        fine = f"({coarse} * {FINE} + mod(('x' || substr({key}, 9, 8))::bit(32)::bigint, {FINE})::int)"
        return coarse, fine

    def _md5(self, text: str) -> str:
        return f"md5(convert_to({text}, 'UTF8'))" if self._recode else f"md5({text})"

    def _text(self, item: ComparedColumn) -> str:
        return self._template(item).format(f"t.{quoted(item.name)}")

    def _template(self, item: ComparedColumn) -> str:
        return item.text.source if self._side == "source" else item.text.target

    def _literal(self, item: ComparedColumn) -> str:
        """A parameter that holds the column's text, as a value of its type."""
        column = item.source if self._side == "source" else item.target
        text = item.text.source if self._side == "source" else item.text.target
        if text == BYTES:
            return "decode(%s::text, 'hex')"
        if text in (INTEGER, NUMERIC):
            return "%s::text::" + ("bigint" if text == INTEGER else "numeric")
        return f"%s::text::{cast_of(column.declared)}"


def cast_of(declared: str) -> str:
    """The type without its limits: a value of the other side that passes them is looked for as it is."""
    if declared.startswith("character("):
        return "bpchar"
    if declared.startswith("character varying"):
        return "varchar"
    return (declared.partition("(")[0] + declared.partition(")")[2]).replace("%", "%%")


def _declared(item: ComparedColumn, side: Side) -> str:
    """The column's type with its limits."""
    return (item.source if side == "source" else item.target).declared.replace("%", "%%")


def _version(side: Side, table: SideTable) -> str:
    if side == "source":
        return "t.xmin::text"
    return f"coalesce(encode(t.{quoted(table.position)}, 'hex'), '')" if table.position else "''"


def _all(where: Sequence[str]) -> str:
    return f" WHERE {' AND '.join(where)}" if where else ""
