"""How large a connector's config may be, that one is masked once, and that nothing escapes for the sake of speed."""

import random

import pytest
from cdcworker.connectors.config import secret_names
from cdcworker.connectors.config.definition import HINTS_MAX, has_reference
from cdcworker.worker.validation.config_limits import (
    CHARS_MAX,
    KEYS_MAX,
    NAME_CHARS_MAX,
    VALUE_CHARS_MAX,
    check_size,
)
from cdcworker.worker.validation.masked_configs import MaskedConfigs
from cdcworker.worker.validation.validate import ConnectorCatalog, check_keys

from tests.unit.worker.conftest import (  # noqa: F401 - fixtures
    DEFINITION,
    FakeCatalog,
    checks,
    client,
    cluster,
    config,
    connect,
    herder,
    kept,
    make_herder,
    runner,
)

TOO_LARGE = {
    "keys": {f"topic.creation.default.k{n}": "v" for n in range(KEYS_MAX + 1)},
    "key": {"topic.creation.default." + "k" * NAME_CHARS_MAX: "v"},
    "value": {"topic.creation.default.v": "v" * (VALUE_CHARS_MAX + 1)},
    "all": {f"topic.creation.default.v{n}": "v" * VALUE_CHARS_MAX for n in range(4)},
}
LARGEST = {
    "keys": {f"topic.creation.default.k{n}": "v" for n in range(KEYS_MAX - 4)},
    "key": {"topic.creation.default." + "k" * (NAME_CHARS_MAX - 23): "v"},
    "value": {"topic.creation.default.v": "v" * VALUE_CHARS_MAX},
    "all": {f"topic.creation.default.v{n}": "v" * ((CHARS_MAX - 1_000) // 4) for n in range(4)},
}


def requests(name, whole):
    yield "POST", "/connectors", {"name": name, "config": whole}
    yield "PUT", f"/connectors/{name}/config", whole
    yield "PATCH", f"/connectors/{name}/config", whole
    yield "PUT", "/connector-plugins/fake/config/validate", {"name": name, **whole}


@pytest.mark.parametrize("kind", TOO_LARGE)
def test_what_is_too_large_is_refused_wherever_it_is_sent(client, cluster, config, kind):  # noqa: F811
    cluster.add("c")
    for method, path, body in requests("c", {**config, **TOO_LARGE[kind]}):
        answer = client(method, path, json=body)
        assert (answer.status_code, answer.json()["code"]) == (400, "config.too_large"), (method, path)
    assert len(answer.text) < 1_500


@pytest.mark.parametrize("kind", LARGEST)
def test_what_is_as_large_as_allowed_is_taken(client, cluster, config, kind):  # noqa: F811
    for method, path, body in requests("c", {**config, **LARGEST[kind]}):
        assert client(method, path, json=body).status_code in (200, 201), (method, path)


def test_a_larger_config_that_is_stored_can_be_read_and_made_smaller(client, cluster):  # noqa: F811
    cluster.add("c", {"topic.creation.default.v": "password=secret " * 60_000})
    shown = client.get("/connectors/c/config").json()["topic.creation.default.v"]
    assert "secret" not in shown
    assert client.patch("/connectors/c/config", json={"port": "1"}).status_code == 400
    assert client.patch("/connectors/c/config", json={"topic.creation.default.v": None}).status_code == 200


def test_hints_are_for_the_first_keys_only():
    values = DEFINITION.validate({f"task.max{n}": "1" for n in range(100)})
    assert sum(value.nearest is not None for value in values) == HINTS_MAX
    assert sum(bool(value.errors) for value in values if value.name.startswith("task.max")) == 100


def test_a_name_that_is_too_long_to_be_a_slip_gets_none():
    values = DEFINITION.validate({"task.max" + "s" * 200: "1"})
    assert all(value.nearest is None for value in values)


def test_sizes_are_those_of_names_and_values_and_null_has_none():
    check_size({"a": None, "b" * NAME_CHARS_MAX: "v" * VALUE_CHARS_MAX})


# -- masked once ------------------------------------------------------------------------------------------------------


def test_a_config_is_masked_once_and_shown_in_the_order_in_which_it_is_given(monkeypatch):
    catalog, masked = FakeCatalog(), []
    monkeypatch.setattr(
        type(DEFINITION),
        "mask",
        lambda self, given: masked.append(1) or {name: value.upper() for name, value in given.items()},
    )
    given = {"connector.class": "fake", "b": "x", "a": "y"}
    assert list(catalog.mask(given).items()) == [("connector.class", "FAKE"), ("b", "X"), ("a", "Y")]
    again = dict(reversed(given.items()))
    assert list(catalog.mask(again)) == list(again)
    assert len(masked) == 1
    catalog.mask({**given, "a": "z"})
    assert len(masked) == 2


def test_who_changes_what_it_was_given_does_not_change_what_is_kept():
    kept_configs = MaskedConfigs()
    kept_configs.masked({"a": "b"}, dict).clear()
    assert kept_configs.masked({"a": "b"}, dict) == {"a": "b"}


def test_few_are_kept():
    kept_configs = MaskedConfigs(chars_max=100)
    for n in range(50):
        kept_configs.masked({"a": f"{n:019d}"}, dict)
    assert [kept_configs.holds({"a": f"{n:019d}"}) for n in (0, 44, 45, 49)] == [False, False, True, True]
    kept_configs.masked({"a": "x" * 200}, dict)
    assert not kept_configs.holds({"a": "x" * 200})
    assert kept_configs.holds({"a": f"{49:019d}"})


# -- nothing escapes --------------------------------------------------------------------------------------------------

PARTS = (
    *(
        "password",
        "PASSWD",
        "pa\u017f\u017fwd",
        "to\u212aen",
        "credent\u0130al",
        "api-key",
        "private_key",
        "user.info",
        "secret",
        "pwd",
        "passphrase",
    ),
    *("=", ":", '"', "'", "\\", " ", "://", "@", "/", "a", "1", "${env:A}", "${", "}", "$", "&", ";", "\n"),
)


def test_what_is_looked_at_quickly_is_masked_like_what_is_looked_at_in_full():
    rng = random.Random(20)
    for _ in range(20_000):
        value = "".join(rng.choices(PARTS, k=rng.randint(1, 12)))
        in_full = value
        for pattern in (secret_names.SETTING, secret_names.LOGIN):
            in_full = pattern.sub(secret_names._hidden, in_full)
        assert secret_names.text(value) == in_full, value


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("${env:A}", True),
        ("x${file:/run/a$b:c}y", True),
        ("${a:${env:A}", True),
        ("${a:" * 30_000, False),
        ("${a:" * 30_000 + "}", True),
        ("${", False),
        ("${1:a}", False),
    ],
)
def test_references_are_found(value, expected):
    assert has_reference(value) == expected


def test_names_with_salts_stay_apart():
    keys = [f"column.mask.hash.SHA-256.with.salt.{n}" for n in range(1_000)]
    shown = secret_names.names([*keys, "column.mask.hash.SHA-256.with.salt.****"])
    assert len(set(shown.values())) == 1_001
    assert all(name.startswith("column.mask.hash.SHA-256.with.salt.****") for name in shown.values())


@pytest.mark.parametrize("plugin", ["postgres", "datagen"])
@pytest.mark.parametrize(("count", "is_fine"), [(20, True), (21, False), (20_000, False)])
def test_the_number_of_transforms_is_bounded(plugin, count, is_fine):
    names = ",".join(f"a{number}" for number in range(count))
    given = {"name": "c", "connector.class": plugin, "topic.prefix": "x", "transforms": names, "transforms.a1.x": "y"}
    report = check_keys(ConnectorCatalog(), given)
    told = [item for item in report.errors if item.key.startswith("transforms")]
    assert (told[0].key == "transforms") != is_fine
    if not is_fine:
        assert told[0].message == f"transforms names {count} transforms; at most 20 may be named"
        assert len(report.findings) < 20
