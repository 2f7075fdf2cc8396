"""The tables that a publication names, from the catalog alone: `pg_get_publication_tables` opens each of them (16), and so
waits for whoever has locked one."""

from __future__ import annotations

from typing import Final

from cdcworker.connectors.postgres.transport.admin_connection import AdminConnection

TREE: Final = """
tree(root, oid) as (
    select o, o from unnest(%(oids)s::oid[]) o
    union all
    select tree.root, i.inhrelid from tree join pg_inherits i on i.inhparent = tree.oid and not i.inhdetachpending
    join pg_class c on c.oid = i.inhrelid where c.relispartition
)
"""
"""Of each of `oids` itself and all partitions below it: `pg_partition_tree` locks those. After `with recursive`."""

# As `is_publishable_class` has it: what has a lower number is the server's own.
_FIT: Final = "c.relkind in ('r', 'p') and c.relpersistence = 'p' and c.oid >= 16384"
_SCHEMAS: Final = f"""
    union select c.oid from pub join pg_publication_namespace s on s.pnpubid = pub.oid
    join pg_class c on c.relnamespace = s.pnnspid where {_FIT}
"""
_LISTED: Final = """
with recursive pub as materialized (
    select oid, puballtables, pubviaroot from pg_publication where pubname = %(name)s
), named(oid) as (
    select r.prrelid from pub join pg_publication_rel r on r.prpubid = pub.oid{schemas}
), below(oid) as (
    select i.inhrelid from named join pg_inherits i on i.inhparent = named.oid and not i.inhdetachpending
    join pg_class c on c.oid = i.inhrelid where c.relispartition
    union
    select i.inhrelid from below join pg_inherits i on i.inhparent = below.oid and not i.inhdetachpending
    join pg_class c on c.oid = i.inhrelid where c.relispartition
), listed(oid) as (
    select c.oid from pub join pg_class c on {fit} where pub.puballtables
    and case when pub.pubviaroot then not c.relispartition else c.relkind = 'r' end
    union
    (select named.oid from pub, named where pub.pubviaroot{covered})
    union
    select c.oid from pub, (select oid from named union select oid from below) m join pg_class c on c.oid = m.oid
    where not pub.pubviaroot and c.relkind <> 'p'
)
"""
_COVERED: Final = " except select oid from below"
ENTRY: Final = (
    "left join pg_publication_rel r on r.prpubid = p.oid and r.prrelid = c.oid and not exists"
    " (select from pg_publication_namespace n where n.pnpubid = p.oid and n.pnnspid = c.relnamespace)"
)
"""Of table `c` in publication `p` (15): of one whose schema is published too neither column list nor row filter counts."""
SENT: Final = (
    "case when r.prattrs is not null then a.attnum = any (r.prattrs::int2[])"
    " else a.attgenerated = '' or (a.attgenerated = 's' and to_jsonb(p) ->> 'pubgencols' = 's') end"
)
"""Whether its column `a` is published."""


def listed(server_version: int) -> str:
    """The beginning of a statement, in which `listed` has the tables of publication `name`, `pub` its row."""
    return _LISTED.format(fit=_FIT, schemas=_SCHEMAS if server_version >= 150000 else "", covered=_COVERED)


def members(connection: AdminConnection, publication: str) -> list[tuple[int, str, str]]:
    """Number, schema and name of each table whose changes come under its own name."""
    statement = listed(connection.info.server_version) + (
        "select c.oid, n.nspname, c.relname from listed join pg_class c on c.oid = listed.oid"
        " join pg_namespace n on n.oid = c.relnamespace order by 2, 3"
    )
    return connection.execute(statement.encode(), {"name": publication}).fetchall()
