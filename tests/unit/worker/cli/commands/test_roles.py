"""`cdcworker roles`: scripts that name what they were asked for, quoted, and no more than the code needs."""

from __future__ import annotations

import json
import re
import shlex
from types import SimpleNamespace

import pytest
from cdcworker.connectors.api.abilities import RoleOption
from cdcworker.connectors.capture.config.table_share import TableShare
from cdcworker.connectors.postgres.server.roles import SourceRole, source_script
from cdcworker.connectors.registry.names import plugins
from cdcworker.connectors.sink_engine.warehouse_kinds import KINDS
from cdcworker.connectors.sql_script import ScriptStep, either
from cdcworker.coordinator.kafka.clients import reader_config
from cdcworker.coordinator.kafka.internal_topics import TopicNames
from cdcworker.coordinator.kafka.leader_writer import leader_transactional_id
from cdcworker.worker.cli.commands import roles
from cdcworker.worker.cli.main import cli
from cdcworker.worker.generators.kafka_acls import Acl, ConnectorAcls, acls
from cdcworker.worker.protocol.task_spec import TRANSACTIONAL_IDS, transactional_id
from click.testing import CliRunner


def run(*words: str) -> str:
    done = CliRunner().invoke(cli, ["roles", *words])
    assert done.exit_code == 0, done.output
    return done.output


def test_a_source_gets_select_on_its_tables_and_a_publication_of_them():
    text = run("source", "--role", "shop", "--database", "shop", "--table", "public.orders", "--table", "b.items")
    assert 'GRANT SELECT ON "public"."orders", "b"."items" TO "shop";' in text
    assert 'GRANT USAGE ON SCHEMA "b" TO "shop";' in text
    assert 'CREATE PUBLICATION "dbz_publication" FOR TABLE ONLY "public"."orders", ONLY "b"."items"' in text
    assert "SUPERUSER" not in text
    assert "ALL TABLES" not in text
    assert "PASSWORD" not in text


@pytest.mark.parametrize(
    ("flavour", "statement"),
    [("self-managed", 'ALTER ROLE "r" REPLICATION'), ("rds", 'GRANT rds_replication TO "r"')],
)
def test_replication_is_given_as_the_provider_has_it(flavour, statement):
    steps = source_script(SourceRole("r", "d", [("s", "t")], flavour=flavour))
    assert statement in [line for step in steps for line in step.statements]


def test_each_of_several_slots_gets_a_publication_of_its_share():
    words = [word for table in "abcdef" for word in ("--table", f"public.{table}")]
    text = run("source", "--role", "shop", "--database", "shop", "--publication", "pub", "--slots", "2", *words)
    found = [re.findall(r'ONLY "public"."(.)"', line) for line in text.splitlines() if "CREATE PUBLICATION" in line]
    assert [line.split()[5] for line in text.splitlines() if "CREATE PUBLICATION" in line] == [
        '"pub_0of2"',
        '"pub_1of2"',
    ]
    assert found[0] == [table for table in "abcdef" if TableShare(0, 2).has(f"public.{table}")] * 2
    assert sorted({*found[0], *found[1]}) == list("abcdef")


def test_a_slot_without_a_table_gets_an_empty_publication():
    (text,) = [
        statement
        for step in source_script(SourceRole("r", "d", [("s", "t")], "pub", slots=2))
        for statement in step.statements
        if f'"pub_{1 - TableShare(1, 2).has("s.t")}of2"' in statement
    ]
    assert "FOR TABLE" not in text
    assert "SET TABLE" not in text


def test_a_sink_gets_its_schemas_only():
    text = run("sink", "--role", "loader", "--database", "warehouse", "--schema", 'od"d')
    assert 'GRANT USAGE, CREATE ON SCHEMA "od""d" TO "loader";' in text
    assert "ON DATABASE" in text
    assert "CREATE ON DATABASE" not in text


class OtherSource:
    """A source of another database, whose script takes an option that no other has."""

    @classmethod
    def role_options(cls):
        return (
            RoleOption("hosts", "--host", "From where it logs in.", repeated=True),
            RoleOption("big", "--big", "", False),
        )

    @classmethod
    def role_script(cls, wanted):
        hosts = wanted.options["hosts"]
        return [
            ScriptStep("", tuple(f"{wanted.role}@{host} {sorted(wanted.options)} {wanted.tables}" for host in hosts))
        ]


def test_a_connector_of_another_database_brings_its_own_options(monkeypatch):
    other = SimpleNamespace(name="other", kind="source", load=lambda: OtherSource)
    monkeypatch.setattr(roles, "plugins", lambda: [other, *plugins()])
    words = ["--role", "r", "--database", "d", "--table", "s.t", "--host", "a", "--host", "b"]
    text = run("source", *words)
    assert "r@a ['big', 'hosts'] [('s', 't')]" in text
    assert "r@b" in text
    done = CliRunner().invoke(cli, ["roles", "source", "--role", "r", "--database", "d", "--table", "s.t"])
    assert done.exit_code == 2
    assert "--host" in done.output
    assert "CREATE PUBLICATION" in run("source", "--connector", "postgres", *words)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.role_script], ids=lambda kind: kind.name)
def test_the_kinds_of_warehouses_that_have_roles_can_be_named(kind):
    text = run("sink", "--warehouse", kind.name, "--role", "loader", "--database", "d", "--schema", "s")
    assert any(name in text for name in ('"loader"', "'loader'@'%'", "`loader`"))


def test_a_kind_of_warehouse_without_roles_is_refused():
    words = ["roles", "sink", "--warehouse", "parquet", "--role", "loader", "--database", "d", "--schema", "s"]
    assert CliRunner().invoke(cli, words).exit_code == 2


def test_a_name_cannot_end_the_quoting_of_its_statement():
    text = either('CREATE ROLE "$cdc$ $cdc_$"', ())
    tag = text.split()[1]
    assert text.count(tag) == 2


def test_a_table_without_a_schema_is_refused():
    done = CliRunner().invoke(cli, ["roles", "source", "--role", "r", "--database", "d", "--table", "orders"])
    assert done.exit_code == 2
    assert "public.orders" in done.output


def covers(found: list[Acl], resource: str, name: str, operation: str) -> bool:
    return any(
        acl.resource == resource
        and operation in acl.operations
        and (name.startswith(acl.name) if acl.prefixed else name == acl.name)
        for acl in found
    )


def test_the_acls_cover_the_names_that_the_code_uses_and_no_others():
    group, topics = "shop/eu", TopicNames.of_group("shop/eu", {"status.storage.topic": "elsewhere"})
    found = acls(ConnectorAcls(group, topics, ["shop"], ["crm.public."], "trail", "trouble"))
    for topic in (topics.configs, topics.offsets, "elsewhere", topics.schemas):
        assert covers(found, "topic", topic, "Write")
    assert not covers(found, "topic", topics.coordination, "Write")
    for name in (
        leader_transactional_id(group),
        *(make(group, "c", 0) for make in TRANSACTIONAL_IDS),
    ):
        assert covers(found, "transactional-id", name, "Write")
    assert not covers(found, "transactional-id", transactional_id("shop", "c", 0), "Write")
    assert covers(found, "group", reader_config({"bootstrap.servers": "k:1"}, client_id="c")["group.id"], "Describe")
    assert covers(found, "group", "cdcworker-sink-schemas", "Describe")
    assert covers(found, "topic", "shop.watermark", "Write")
    assert not covers(found, "topic", "shopping.public.t", "Write")
    assert not covers(found, "topic", "crm.public.t", "Write")
    assert covers(found, "topic", "trail", "Write")
    for operation in ("Create", "Read", "Write"):
        assert covers(found, "topic", "trouble", operation)
    assert not [
        acl for acl in found if "All" in acl.operations or "Delete" in acl.operations or "Alter" in acl.operations
    ]


def test_the_commands_are_kafkas(tmp_path):
    path = tmp_path / "worker.properties"
    path.write_text("bootstrap.servers=k:9092\ngroup.id=my shop\n")
    words = ["kafka", "--principal", "User:CN=cdc, O=x", "--config", str(path), "--source", "shop", "--sink", "shop."]
    lines = [line for line in run(*words).splitlines() if not line.startswith("#")]
    first = shlex.split(lines[0])
    assert first[:3] == ["kafka-acls.sh", "--bootstrap-server", "k:9092"]
    assert first[first.index("--allow-principal") + 1] == "User:CN=cdc, O=x"
    assert first[first.index("--topic") + 1] == "my shop.configs"
    told = json.loads(run(*words, "--json"))["result"]["acls"]
    assert len(told) == len(lines)
