"""What the stream does not say about a table: nullability, defaults, keys and types, asked of the catalog."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
from cdcworker.connectors.postgres.errors import translate
from cdcworker.connectors.postgres.pgoutput import Relation, RelationColumn
from cdcworker.connectors.postgres.transport.admin_connection import AdminConnection
from cdcworker.connectors.postgres.types.mapping import PgType


@dataclass(frozen=True, slots=True)
class ColumnInfo:
    attnum: int
    name: str
    type_oid: int
    typmod: int
    not_null: bool
    default: str | None
    """The default's expression; None also for generated columns."""
    dims: int = 0
    """Dimensions that the column declares; PostgreSQL keeps no value to them."""


@dataclass(frozen=True, slots=True)
class TableInfo:
    """A table as the catalog has it now; the stream may be older or newer."""

    oid: int
    schema: str
    table: str
    identity: str
    columns: dict[str, ColumnInfo]
    key: tuple[str, ...]
    """Columns of the primary key, of the identity index, or of a unique index when the identity is full."""
    identity_key: tuple[str, ...] = ()
    """Columns that the server logs as the key under identity `d` or `i`."""
    partitioned: bool = False
    """Its rows lie in partitions; those of any other table's children are the children's own."""

    def relation(self) -> Relation:
        """The RELATION message that the stream would send for this shape."""
        marked = set(self.columns) if self.identity == "f" else set(self.identity_key)
        columns = (RelationColumn(c.name, c.type_oid, c.typmod, c.name in marked) for c in self.columns.values())
        return Relation(self.oid, self.schema, self.table, self.identity, tuple(columns))


@dataclass
class TypeNames:
    """Types by OID and their SQL names by (OID, typmod)."""

    types: dict[int, PgType] = field(default_factory=dict)
    names: dict[tuple[int, int], str] = field(default_factory=dict)


_TABLE = """
select c.oid, n.nspname, c.relname, c.relreplident::text, c.relkind = 'p'
from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = %s
"""

# A default names no column, so its table need not be told: the server would lock that.
_COLUMNS = """
select a.attnum, a.attname, a.atttypid, a.atttypmod, a.attnotnull,
       case when a.attgenerated = '' and a.attidentity = '' then pg_get_expr(d.adbin, 0) end, a.attndims
from pg_attribute a left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
where a.attrelid = %s and a.attnum > 0 and not a.attisdropped
  and (a.attgenerated = '' or (a.attgenerated = 's' and current_setting('server_version_num')::int >= 180000))
order by a.attnum
"""

# The primary key first, then the identity index, then unique indexes whose columns are all NOT NULL, narrowest first.
_KEYS = """
select i.indisprimary, i.indisreplident,
       array(select a.attname from unnest(i.indkey[0:i.indnkeyatts - 1]) with ordinality k(num, pos)
             join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.num order by k.pos)::text[] as names
from pg_index i
where i.indrelid = %s and i.indisunique and i.indisvalid and i.indimmediate and i.indpred is null
  and i.indexprs is null
  and not exists (select from unnest(i.indkey[0:i.indnkeyatts - 1]) k(num)
                  join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.num where not a.attnotnull)
order by i.indisprimary desc, i.indisreplident desc, i.indnkeyatts, i.indexrelid
"""

# True arrays only: an int2vector has elements too, and is written in another way.
_TYPES = """
with recursive wanted as (
    select t.* from pg_type t where t.oid = any(%s)
    union
    select t.* from pg_type t join wanted w on t.oid = w.typbasetype
        or (t.oid = w.typelem and w.typoutput = 'pg_catalog.array_out'::regproc)
        or (w.typtype = 'c' and t.oid in (select a.atttypid from pg_attribute a where a.attrelid = w.typrelid
            and a.attnum > 0 and not a.attisdropped))
)
select t.oid, t.typname, t.typtype::text,
       case when t.typoutput = 'pg_catalog.array_out'::regproc and t.typtype = 'b' then t.typelem else 0 end,
       t.typbasetype, t.typtypmod,
       array(select e.enumlabel from pg_enum e where e.enumtypid = t.oid order by e.enumsortorder)::text[],
       t.typdelim::text, t.typndims, n.nspname,
       array(select a.attname from pg_attribute a where t.typtype = 'c' and a.attrelid = t.typrelid
             and a.attnum > 0 and not a.attisdropped order by a.attnum)::text[],
       array(select array[a.atttypid::bigint, a.atttypmod] from pg_attribute a where t.typtype = 'c'
             and a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped order by a.attnum),
       t.typtype = 'c' and exists (select from pg_attribute a where a.attrelid = t.typrelid and a.attisdropped)
from wanted t join pg_namespace n on n.oid = t.typnamespace
"""


class SourceCatalog:
    """The catalog over one ordinary connection; types that cannot change are remembered."""

    def __init__(self, connection: AdminConnection) -> None:
        self._connection = connection
        self._known = TypeNames()

    def table(self, oid: int) -> TableInfo | None:
        """None when the table does not exist any more."""
        head = self._rows(_TABLE, oid)
        if not head:
            return None
        _, schema, table, identity, partitioned = head[0]
        columns = {row[1]: ColumnInfo(*row) for row in self._rows(_COLUMNS, oid)}
        key, identity_key = _choose_key(identity, self._rows(_KEYS, oid))
        return TableInfo(oid, schema, table, identity, columns, key, identity_key, partitioned)

    def types(self, wanted: Iterable[tuple[int, int]]) -> TypeNames:
        """Types and names for (type OID, typmod) pairs; enums and composites are read anew, they may have grown."""
        pairs = set(wanted)
        known = self._known
        missing = {oid for oid, _ in pairs if oid not in known.types or self._may_change(oid)}
        if missing:
            for row in self._rows(_TYPES, list(missing)):
                known.types[row[0]] = _type_of(row)
        unnamed = [pair for pair in pairs if pair not in known.names]
        if unnamed:
            oids, typmods = [oid for oid, _ in unnamed], [typmod for _, typmod in unnamed]
            statement = "select o, m, format_type(o, m) from unnest(%s::oid[], %s::int[]) p(o, m)"
            known.names.update({(oid, typmod): name for oid, typmod, name in self._rows(statement, oids, typmods)})
        return known

    def _may_change(self, oid: int) -> bool:
        pg = self._known.types.get(oid)
        if pg is None or pg.kind in ("e", "c"):
            return True
        inner = pg.element or pg.base
        return bool(inner) and self._may_change(inner)

    def _rows(self, statement: str, *args: Any) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(statement, args).fetchall()
        except psycopg.Error as exc:
            raise translate(exc) from exc


def _type_of(row: Sequence[Any]) -> PgType:
    oid, name, kind, element, base, base_typmod, labels, delimiter, dims, schema, names, kinds, dropped = row
    attributes = tuple((attribute, *pair) for attribute, pair in zip(names, kinds, strict=True))
    return PgType(
        oid, name, kind, element, base, base_typmod, tuple(labels), delimiter, dims, schema, attributes, dropped
    )


def _choose_key(identity: str, rows: Sequence[tuple[Any, ...]]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    primary = next((tuple(names) for is_primary, _, names in rows if is_primary), ())
    replident = next((tuple(names) for _, is_identity, names in rows if is_identity), ())
    unique = next((tuple(names) for _, _, names in rows), ())
    logged = {"d": primary, "i": replident}.get(identity, ())
    if identity == "i" and replident:
        # The server logs only this index's columns as the old key; another key could not be told from its deletes.
        return replident, replident
    return primary or (unique if identity == "f" else ()), logged


_STRING_DEFAULT = re.compile(r"'((?:[^']|'')*)'::[A-Za-z_\"][\w\"\s.,()\[\]]*")
_NUMBER_DEFAULT = re.compile(r"\(?(-?\d+(?:\.\d+)?)\)?(?:::[A-Za-z_][\w\s(),]*)?")


def constant_default(expression: str | None) -> bytes | None:
    """The text form of a default that is a constant; None for none, NULL and for every function."""
    if expression is None:
        return None
    if expression in ("true", "false"):
        return expression[:1].encode()
    number = _NUMBER_DEFAULT.fullmatch(expression)
    if number:
        return number.group(1).encode()
    string = _STRING_DEFAULT.fullmatch(expression)
    return string.group(1).replace("''", "'").encode() if string else None
