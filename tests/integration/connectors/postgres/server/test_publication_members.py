"""Which tables a publication has: asked of the catalog alone, they are those that the server itself lists."""

from __future__ import annotations

import psycopg
import pytest
from cdcworker.connectors.postgres.server.catalog import SourceCatalog
from cdcworker.connectors.postgres.server.publication_columns import PublishedColumns
from cdcworker.connectors.postgres.server.publication_members import members

pytestmark = pytest.mark.postgres

WORLD = (
    "create schema a; create schema b; create schema empty",
    "create table a.plain(id int primary key, v text, w int)",
    'create table b."Odd ""name"(id int primary key, v text)',
    "create table a.doubled(id int primary key, n int, twice int generated always as (n * 2) stored)",
    "create table a.shrunk(id int primary key, gone int, v text); alter table a.shrunk drop column gone",
    "create unlogged table a.unlogged(id int primary key)",
    "create temp table passing(id int primary key)",
    "create view a.seen as select 1 as id; create materialized view a.kept as select 1 as id",
    "create sequence a.numbers; create foreign data wrapper far; create server far foreign data wrapper far",
    "create foreign table a.far(id int) server far",
    # Children that inherit are tables of their own.
    "create table a.parent(id int primary key, v text); create table b.child() inherits (a.parent)",
    "create table a.root(id int, v text, primary key (id)) partition by range (id)",
    "create table a.root_1 partition of a.root for values from (0) to (10)",
    "create table b.root_2 partition of a.root for values from (10) to (20)",
    "create unlogged table a.root_3 partition of a.root for values from (20) to (30)",
    "create table b.nested partition of a.root for values from (30) to (40) partition by range (id)",
    "create table a.nested_1 partition of b.nested for values from (30) to (35)",
    "create table b.nested_2 partition of b.nested for values from (35) to (40)",
    "create table b.bare partition of a.root for values from (40) to (50) partition by range (id)",
    "create table b.far_root(id int, v text) partition by range (id)",
    "create foreign table a.far_1 partition of b.far_root for values from (0) to (10) server far",
    "create table a.far_2 partition of b.far_root for values from (10) to (20)",
    "create table a.none(id int primary key) partition by range (id)",
    # A detachment that was broken off: it is no partition to whoever comes.
    "create table a.leaving partition of a.root for values from (50) to (60)",
    "set allow_system_table_mods = on; update pg_inherits set inhdetachpending = true where inhrelid = 'a.leaving'::regclass",
)  # fmt: skip
TABLES = (
    "a.plain", 'b."Odd ""name"', "a.doubled", "a.shrunk", "a.parent", "b.child", "a.root", "a.root_1", "b.root_2",
    "b.nested", "a.nested_1", "b.nested_2", "b.bare", "b.far_root", "a.far_2", "a.none", "a.leaving",
)  # fmt: skip
LISTED = "select t.relid from pg_publication p, pg_get_publication_tables(p.pubname) t where p.pubname = 'p'"
SHOWN = (
    "select c.oid, p.attnames::text[], p.rowfilter from pg_publication_tables p join pg_namespace n"
    " on n.nspname = p.schemaname join pg_class c on c.relnamespace = n.oid and c.relname = p.tablename"
    " where p.pubname = 'p'"
)


def scopes(rng, version: int):
    """What a publication can be of: all kinds once, then many by chance."""
    yield "for all tables"
    yield ""
    yield from (f"for table only {name}" for name in TABLES)
    if version >= 150000:
        yield from (f"for tables in schema {names}" for names in ("a", "b", "a, b", "empty"))
        yield "for table a.plain (id, w), a.root (id)"
        yield "for table a.plain where (id > 5), a.root where (id > 1), b.root_2 where (id > 2)"
        yield "for table a.plain where (v = 'x'), tables in schema a"
        yield "for table b.root_2 (id, v), a.nested_1"
    if version >= 180000:
        yield "for table a.doubled (id, twice)"
    for _ in range(15):
        parts = [f"only {name}" for name in rng.sample(TABLES, rng.randrange(1, 6))]
        schemas = rng.choice(["", "", "a", "b", "a, b"]) if version >= 150000 else ""
        yield f"for table {', '.join(parts)}" + (f", tables in schema {schemas}" if schemas else "")


def options(rng, version: int):
    for root in ("true", "false"):
        yield f"publish_via_partition_root = {root}"
    if version >= 180000:
        yield f"publish_via_partition_root = {rng.choice(['true', 'false'])}, publish_generated_columns = stored"


def said_alike(db, infos) -> None:
    """Of each table, whether it is published, with which columns, and by which row filter."""
    published = PublishedColumns(db, "p")
    shown = {oid: (tuple(names), text) for oid, names, text in db.execute(SHOWN).fetchall() if names}
    for info in infos:
        entry, wanted = published.of(info, locked=True), shown.get(info.oid)
        assert (entry is None) == (wanted is None), info
        if entry and wanted:
            # Version 15 lists generated columns too, which it does not send.
            assert entry == (tuple(name for name in wanted[0] if name != "twice" or name in entry[0]), wanted[1])
            assert published.of(info, locked=False) == (entry[0], None)
        if db.info.server_version >= 160000 and entry and wanted:
            assert entry == wanted


def test_they_are_those_that_the_server_lists_for_every_kind_of_publication(db, rng):
    for statement in WORLD:
        db.execute(statement)
    version, sizes, catalog = db.info.server_version, set(), SourceCatalog(db)
    every = "select oid from pg_class where oid >= 16384 and relkind in ('r', 'p', 'f')"
    infos = [catalog.table(oid) for (oid,) in db.execute(every).fetchall()]
    for scope in scopes(rng, version):
        for option in options(rng, version):
            try:
                db.execute(f"create publication p {scope} with ({option})")
            except (psycopg.errors.FeatureNotSupported, psycopg.errors.InvalidParameterValue):
                # As a column list beside a schema, or a row filter on a partitioned table.
                continue
            found = [oid for oid, _, _ in members(db, "p")]
            wanted = {row[0] for row in db.execute(LISTED).fetchall()}
            assert sorted(found) == sorted(wanted), (scope, option)
            sizes.add(len(found))
            if version >= 150000:
                said_alike(db, infos)
            db.execute("drop publication p")
    assert len(sizes) > 8
