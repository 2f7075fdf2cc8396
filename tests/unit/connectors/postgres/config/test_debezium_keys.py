"""Keys of Debezium's PostgreSQL connector: every one is known, with its default, in any case of its values."""

import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from cdcworker.connectors.capture.config.propagated_types import PropagatedTypes
from cdcworker.connectors.config.definition import default_text
from cdcworker.connectors.postgres.config.settings import CONFIG_DEF, parse
from cdcworker.connectors.postgres.source_block import SOURCE_SCHEMA
from cdcworker.connectors.postgres.types.mapping import HandlingModes, PgType, TypeRegistry, map_type
from cdcworker.connectors.postgres.types.type_parameters import type_parameters
from cdcworker.schemas.avro import canonical
from cdcworker.schemas.change import Column, Table
from cdcworker.schemas.envelope import key_schema
from cdcworker.schemas.topic_access import TopicAccess
from cdcworker.worker.validation.validate import ConnectorCatalog, check_keys

GENUINE = json.loads((Path(__file__).parents[1] / "genuine" / "config_keys.json").read_text())
"""What Debezium's connector answers: `config` the keys of its `config()` with their defaults, `more` those that its other classes
read from the same configuration."""
DEFAULTS: dict[str, str] = {name: text for name, text in GENUINE["config"].items() if text is not None}
PATTERNS = {
    "column.mask.hash.([^.]+).with.salt.(.+)": "column.mask.hash.SHA-256.with.salt.x",
    "column.mask.with.(d+).chars": "column.mask.with.5.chars",
    "column.truncate.to.(d+).chars": "column.truncate.to.5.chars",
}
"""Keys whose names are patterns, by one of the names that they stand for."""
KEYS = {PATTERNS.get(name, name): text for part in ("config", "more") for name, text in GENUINE[part].items()}
BASIS = {"database.hostname": "h", "database.user": "u", "database.password": "p", "database.dbname": "d"}


def posted(**more: str) -> dict[str, str]:
    basis = {"name": "shop", "connector.class": "io.debezium.connector.postgresql.PostgresConnector"}
    return {**basis, **BASIS, "topic.prefix": "shop", **{name.replace("_", "."): value for name, value in more.items()}}


def errors(config: dict[str, str]) -> list[str]:
    return [error for value in CONFIG_DEF.validate(config) for error in value.errors]


def test_debeziums_defaults_are_accepted_together():
    assert (GENUINE["debezium"], len(GENUINE["config"])) == ("3.6.3.Final", 126)
    more = {name: text for name, text in GENUINE["more"].items() if text is not None}
    for config in ({**posted(), **DEFAULTS}, {**posted(), **more, **DEFAULTS}):
        assert errors(config) == []
        parse(config)


def test_debeziums_defaults_are_accepted_together_by_the_rest_api():
    """As /connector-plugins/postgres/config/validate judges the keys of a body."""
    answer = check_keys(ConnectorCatalog(), {**posted(), **DEFAULTS}, TopicAccess()).config_infos()
    assert answer["error_count"] == 0


@pytest.mark.parametrize("page", ["differences", "debezium"])
def test_every_default_that_differs_is_among_the_deliberate_differences(page):
    text = (Path(__file__).parents[5] / "docs" / "migration" / f"{page}.md").read_text()
    (table,) = re.findall(r"^## Defaults[^\n]*\n(.*?)^## ", text, re.MULTILINE | re.DOTALL)
    told = set(re.findall(r"^\| `([a-z.]+)` \|", table, re.MULTILINE)) & GENUINE["config"].keys()
    defined = {name: CONFIG_DEF.keys[name] for name in KEYS if name in CONFIG_DEF.keys}
    assert len(defined) > 60
    differing = {name for name, key in defined.items() if (default_text(key) or "") != key.spelled(KEYS[name] or "")}
    assert differing == told


@pytest.mark.parametrize("name", sorted(KEYS))
def test_each_of_debeziums_keys_is_known(name):
    assert [value for value in CONFIG_DEF.validate({**posted(), name: KEYS[name] or "x"}) if not value.known] == []


@pytest.mark.parametrize(
    ("name", "value", "instead"),
    [
        ("topic.naming.strategy", "io.debezium.schema.DefaultUnicodeTopicNamingStrategy", "RegexRouter"),
        ("topic.naming.strategy", "com.example.OurNames", "RegexRouter"),
        ("topic.delimiter", "-", "RegexRouter"),
        ("guardrail.collections.max", "100", "table.include.list"),
        ("event.processing.failure.handling.mode", "warn", "table.failure.policy"),
        ("event.processing.failure.handling.mode", "skip", "table.failure.policy"),
        ("database.sslfactory", "com.example.Factory", "database.sslmode"),
        ("snapshot.mode.custom.name", "ours", "not called"),
        ("table.ignore.builtin", "false", "not captured"),
        ("topic.regex", "shop\\.(.*)", "RegexRouter"),
    ],
)
def test_a_value_whose_effect_would_be_missed_is_refused_and_says_what_to_do(name, value, instead):
    (error,) = errors({**posted(), name: value})
    assert error.startswith(f"{name} is not available")
    assert instead in error


@pytest.mark.parametrize(
    ("name", "value"),
    [("topic.delimiter", "-"), ("guardrail.collections.max", "100"), ("topic.naming.strategy", "com.X")],
)
def test_a_connector_that_runs_with_a_key_without_effect_goes_on(name, value):
    assert errors({**posted(), name: value})
    parse({**posted(), name: value})


def test_values_are_read_without_regard_to_case():
    given = {
        "decimal.handling.mode": "String",
        "time.precision.mode": "ADAPTIVE_TIME_MICROSECONDS",
        "binary.handling.mode": "BASE64-URL-SAFE",
        "publication.autocreate.mode": "Filtered",
        "plugin.name": "PGOUTPUT",
        "event.processing.failure.handling.mode": "FAIL",
        "snapshot.mode": "Schema_Only",
        "database.sslmode": "REQUIRE",
        "topic.creation.default.cleanup.policy": "COMPACT",
        "skipped.operations": "T,U",
    }
    settings = parse({**posted(), **given})
    assert (settings.modes.decimal, settings.modes.time) == ("string", "adaptive_time_microseconds")
    assert (settings.modes.binary, settings.autocreate) == ("base64-url-safe", "filtered")
    assert (settings.snapshot_mode, settings.raw["database.sslmode"]) == ("no_data", "require")
    assert settings.skipped == {"t", "u"}
    assert settings.completes_rows
    # Texts of the user's own keep their case.
    assert parse({**posted(), "table.include.list": "public.Orders"}).raw["table.include.list"] == ["public.Orders"]
    assert errors({**posted(), "snapshot.mode": "CUSTOM"}) != []


@pytest.mark.parametrize(
    ("name", "typmod", "named"),
    [
        ("int4", -1, {"type": "INT4"}),
        ("varchar", 24, {"type": "VARCHAR", "length": "20"}),
        ("numeric", (12 << 16 | 2) + 4, {"type": "NUMERIC", "length": "12", "scale": "2"}),
        ("bit", 8, {"type": "BIT", "length": "8"}),
    ],
)
def test_chosen_columns_name_their_source_type_in_parameters(name, typmod, named):
    pg, column = PgType(1, name), ("public", "orders", "c")
    plain = map_type(pg, typmod, HandlingModes(), TypeRegistry())
    settings = parse({**posted(), "datatype.propagate.source.type": rf"public\..*\.{name.upper()}"})
    for chosen in (settings.propagated, PropagatedTypes(columns=(r"public\.Orders\.c",))):
        mapped = chosen.apply(plain, column, pg.name, partial(type_parameters, pg, typmod))
        expected = {f"__debezium.source.column.{key}": value for key, value in named.items()}
        before = plain.avro.get("connect.parameters", {}) if isinstance(plain.avro, dict) else {}
        assert mapped.avro["connect.parameters"] == {**before, **expected}
        assert (mapped.avro["type"], mapped.parse) == (
            plain.avro["type"] if isinstance(plain.avro, dict) else plain.avro,
            plain.parse,
        )
        # A type that becomes longer must not change the bytes of keys.
        table = Table(("public", "orders"), 1, (Column("c", mapped.avro, False),), (0,), SOURCE_SCHEMA)
        bare = replace(table, columns=(Column("c", plain.avro, False),))
        assert canonical(key_schema("p", table)) == canonical(key_schema("p", bare))
    assert PropagatedTypes(columns=(r"public\.orders\.d",)).apply(plain, column, pg.name, dict) is plain
    assert PropagatedTypes().apply(plain, column, pg.name, dict) is plain


def test_a_record_type_that_columns_share_has_no_parameters():
    pg = PgType(1700, "numeric")
    variable = map_type(pg, -1, HandlingModes(), TypeRegistry())
    assert PropagatedTypes(columns=(".*",)).apply(variable, ("public", "t", "c"), pg.name, dict) is variable
