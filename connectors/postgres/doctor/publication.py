"""Does the publication hold every chosen table, whole, with every operation?"""

from __future__ import annotations

from collections.abc import Iterator

from cdcworker.connectors.checks import CheckResult, DoctorCheck, Repair, ok
from cdcworker.connectors.postgres import errors as e
from cdcworker.connectors.postgres.doctor.examined_server import ExaminedServer, listed
from cdcworker.connectors.postgres.server import fixes
from cdcworker.connectors.postgres.server import slot as slots
from cdcworker.connectors.postgres.server.fixes import ident
from cdcworker.connectors.postgres.server.publication_members import ENTRY, SENT
from cdcworker.connectors.postgres.server.publication_members import listed as members_of

OPERATIONS = {"insert": "c", "update": "u", "delete": "d", "truncate": "t"}


def _names(examined: ExaminedServer, oids: set[int]) -> list[tuple[str, str]]:
    return [(schema, table) for oid, schema, table in examined.tables if oid in oids]


def _texts(names: list[tuple[str, str]]) -> str:
    return listed([f"{schema}.{table}" for schema, table in names])


def _exists(examined: ExaminedServer) -> Iterator[CheckResult]:
    if examined.publication is not None:
        yield ok(f"{examined.settings.publication} exists")
        return
    settings, tables = examined.settings, [(schema, table) for _, schema, table in examined.tables]
    fix = fixes.publication(settings.publication, tables, via_root=settings.via_root) if tables else None
    if settings.autocreate == "disabled":
        text = f"publication {settings.publication} does not exist"
        yield CheckResult("error", "missing", text, e.PUBLICATION, fix=fix)
        return
    may, superuser = examined.row(
        "select has_database_privilege(current_database(), 'create'), rolsuper from pg_roles where rolname = current_user"
    )
    found = list(_may_not_create(examined, may, superuser, fix))
    yield from found
    if not found:
        yield ok(f"{settings.publication} does not exist yet; the connector makes it ({settings.autocreate})")


def _may_not_create(examined: ExaminedServer, may: bool, superuser: bool, fix: Repair | None) -> Iterator[CheckResult]:
    settings = examined.settings
    if not may:
        grant = Repair((f"GRANT CREATE ON DATABASE {ident(settings.dbname)} TO {ident(examined.user)}",), safe=True)
        hint = f"GRANT CREATE ON DATABASE {settings.dbname} TO {settings.user}, or create the publication yourself."
        yield CheckResult(
            "error", "missing", "the role may not create a publication", e.PUBLICATION, hint=hint, fix=grant
        )
    if settings.autocreate == "all_tables" and not superuser:
        hint = "Use publication.autocreate.mode=filtered."
        yield CheckResult("error", "missing", "a publication of all tables needs a superuser", e.PUBLICATION, hint=hint)
    if settings.autocreate == "filtered":
        rows = examined.rows(
            "select oid from pg_class where oid = any(%s) and not pg_has_role(relowner, 'usage')", examined.oids
        )
        if rows:
            names = _names(examined, {row[0] for row in rows})
            hint = "Publishing a table needs its ownership: let the owner create the publication, or grant the role."
            text = f"{len(rows)} tables belong to other roles: {_texts(names)}"
            yield CheckResult("error", "missing", text, e.PUBLICATION, hint=hint, fix=fix)


def _members(examined: ExaminedServer) -> Iterator[CheckResult]:
    found, settings = examined.publication, examined.settings
    if found is None:
        yield ok("no publication yet")
        return
    members = {oid for oid, _, _ in slots.published(examined.connection, settings)}
    outside = _names(examined, set(examined.oids) - members)
    measured = f"{len(examined.oids) - len(outside)} of {len(examined.oids)} tables"
    if not outside or found["all"]:
        yield ok(measured)
        return
    name, fix = settings.publication, fixes.add_tables(settings.publication, outside)
    if settings.autocreate == "filtered":
        if found["ours"]:
            yield ok(f"{measured}; the connector adds {_texts(outside)}")
            return
        text = f"publication {name} lacks {len(outside)} tables and belongs to another role: {_texts(outside)}"
        hint = "Let its owner add the tables, or make database.user its owner."
        yield CheckResult("error", measured, text, e.PUBLICATION, hint=hint, fix=fix)
        return
    text = f"publication {name} does not hold {len(outside)} of the chosen tables: {_texts(outside)}"
    yield CheckResult("warning", measured, text, e.PUBLICATION, hint=f"ALTER PUBLICATION {name} ADD TABLE …", fix=fix)


def _operations(examined: ExaminedServer) -> Iterator[CheckResult]:
    found = examined.publication
    if found is None:
        yield ok("no publication yet")
        return
    missing = [name for name, op in OPERATIONS.items() if not found[name] and op not in examined.settings.skipped]
    present = ", ".join(name for name in OPERATIONS if found[name])
    if not missing:
        yield ok(present)
        return
    name = examined.settings.publication
    text = f"publication {name} leaves out {', '.join(missing)}: they never arrive"
    change = f"ALTER PUBLICATION {ident(name)} SET (publish = 'insert, update, delete, truncate')"
    yield CheckResult("warning", present or "nothing", text, e.PUBLICATION, fix=Repair((change,), safe=True))


def _filters(examined: ExaminedServer) -> Iterator[CheckResult]:
    rows = _published(examined, "r.prqual is not null")
    if not rows:
        yield ok("none")
        return
    text = f"publication {examined.settings.publication} publishes only some rows of {_texts(rows)}"
    hint = "A snapshot reads all rows, the stream only those: publish the whole table, or take it for what it is."
    fix = Repair(tuple(_whole(examined, rows)))
    yield CheckResult("warning", f"{len(rows)} tables", text, e.PUBLICATION, hint=hint, fix=fix)


def _columns(examined: ExaminedServer) -> Iterator[CheckResult]:
    """A column list without the key makes the server refuse updates and deletes."""
    keyless = (
        "exists (select from pg_index i join pg_attribute a on a.attrelid = i.indrelid and a.attnum = any(i.indkey)"
        f" where i.indrelid = c.oid and i.indisprimary and not {SENT})"
    )
    rows = _published(examined, keyless)
    if not rows:
        yield ok("every key is published")
        return
    text = f"the column lists of {_texts(rows)} leave out the key: updates and deletes are refused by the server"
    yield CheckResult("error", f"{len(rows)} tables", text, e.PUBLICATION, fix=Repair(tuple(_whole(examined, rows))))


def _published(examined: ExaminedServer, condition: str) -> list[tuple[str, str]]:
    """Chosen tables of the publication for which something of PostgreSQL 15 and later holds."""
    if examined.publication is None or examined.version < 150000:
        return []
    statement = members_of(examined.version) + (
        f"select c.oid from listed join pg_class c on c.oid = listed.oid join pg_publication p on p.pubname = %(name)s {ENTRY}"
        f" where c.oid = any(%(oids)s) and {condition}"
    )
    given = {"name": examined.settings.publication, "oids": examined.oids}
    return _names(examined, {row[0] for row in examined.connection.execute(statement.encode(), given).fetchall()})


def _whole(examined: ExaminedServer, tables: list[tuple[str, str]]) -> Iterator[str]:
    name = ident(examined.settings.publication)
    for table in tables:
        yield f"ALTER PUBLICATION {name} DROP TABLE ONLY {ident(*table)}"
        yield f"ALTER PUBLICATION {name} ADD TABLE ONLY {ident(*table)}"


def _root(examined: ExaminedServer) -> Iterator[CheckResult]:
    found, wanted = examined.publication, examined.settings.via_root
    if found is None or found["root"] == wanted or examined.settings.autocreate == "filtered":
        yield ok("as configured" if wanted else "partitions by themselves")
        return
    text = f"publish_via_partition_root is {str(found['root']).lower()} and the config says {str(wanted).lower()}"
    name = ident(examined.settings.publication)
    change = f"ALTER PUBLICATION {name} SET (publish_via_partition_root = {str(wanted).lower()})"
    key = "publish.via.partition.root"
    yield CheckResult("warning", str(found["root"]).lower(), text, e.PUBLICATION, key, fix=Repair((change,), safe=True))


def _generated(examined: ExaminedServer) -> Iterator[CheckResult]:
    rows = examined.rows(
        "select distinct attrelid from pg_attribute where attrelid = any(%s) and attgenerated <> '' and not attisdropped",
        examined.oids,
    )
    if not rows:
        yield ok("none")
        return
    names = _names(examined, {row[0] for row in rows})
    text = f"generated columns are not captured: {_texts(names)}"
    yield CheckResult("note", f"{len(names)} tables", text, hint="Compute them in the target if they are needed there.")


def _schemas(examined: ExaminedServer) -> Iterator[CheckResult]:
    if examined.publication is None or examined.version < 150000:
        yield ok("none")
        return
    rows = examined.rows(
        "select n.nspname from pg_publication_namespace p join pg_namespace n on n.oid = p.pnnspid where p.pnpubid = %s",
        examined.publication["oid"],
    )
    if not rows or examined.settings.autocreate != "filtered":
        yield ok(listed([row[0] for row in rows]) or "none")
        return
    text = f"the publication holds whole schemas ({listed([row[0] for row in rows])}); mode filtered may replace them"
    hint = "Use publication.autocreate.mode=disabled to keep the publication as it is."
    yield CheckResult("warning", f"{len(rows)} schemas", text, e.PUBLICATION, "publication.autocreate.mode", hint)


CHECKS = (
    DoctorCheck("publication.exists", "The server sends only what a publication names.", _exists),
    DoctorCheck("publication.tables", "A table outside of the publication is never heard of.", _members),
    DoctorCheck(
        "publication.operations", "An operation that is not published does not happen for any reader.", _operations
    ),
    DoctorCheck(
        "publication.row_filters", "Rows that the publication filters out are missing without a word.", _filters
    ),
    DoctorCheck("publication.column_lists", "Updates and deletes need the key.", _columns),
    DoctorCheck("publication.partition_root", "Decides whether topics are per partition or per table.", _root),
    DoctorCheck("publication.generated", "What is not in the log cannot be captured.", _generated, validates=False),
    DoctorCheck("publication.schemas", "Publications of whole schemas grow by themselves.", _schemas),
)
