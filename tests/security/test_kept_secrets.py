"""A stored secret stays with the place that it was given for: every secret key against every key that decides on a place."""

from __future__ import annotations

import asyncio
import functools
import itertools
import re

import httpx
import pytest
import yaml
from cdcworker.connectors.config.converters import NOT_AVAILABLE
from cdcworker.connectors.config.definition import default_text
from cdcworker.connectors.registry import names as registry
from cdcworker.connectors.transform_chain.config import EXAMPLE
from cdcworker.worker.security.authenticate import Authenticator
from cdcworker.worker.security.credentials import hashed
from cdcworker.worker.security.gate import Gate
from cdcworker.worker.security.users import UserFile
from cdcworker.worker.server.application import create_app
from cdcworker.worker.validation.validate import ConnectorCatalog

from tests.unit.worker.conftest import Checks, Client, Cluster, FakeHerder, api_settings

CATALOG = ConnectorCatalog()
PLUGINS = {plugin.name: plugin for plugin in registry.plugins()}
CANARY = "kept-canary-secret"
CODE = "config.secret_for_another_place"
TOKEN = "S" * 43
HASH = hashed(TOKEN, log_n=10)
SPEAKS_OF_A_PLACE = re.compile(
    r"host|uri|url|port|server|ssl|tls|path|endpoint|catalog|proxy|address|master|user|dbname|database\.|file|folder"
    r"|class|transport$|launcher|archive|python|properties|broker|socket|login|auth|password|secret|warehouse",
    re.I,
)


@functools.cache
def keys_of(name):
    return CATALOG.definition(PLUGINS[name]).of(EXAMPLE).keys


@functools.cache
def destinations(name):
    return sorted(key.name for key in keys_of(name).values() if key.connects)


def secrets(name):
    return sorted(key.name for key in keys_of(name).values() if key.type == "PASSWORD")


PAIRS = [
    (name, secret, place)
    for name in PLUGINS
    for secret in secrets(name)
    for place in destinations(name)
    if place != secret
]


def bearer(name):
    return {"Authorization": f"Bearer cdc_{name * 12}_{TOKEN}"}


TENANT, ADMIN = bearer("a"), bearer("b")


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """A worker with the shipped connectors, a tenant with one prefix and an admin of the cluster."""
    path = tmp_path_factory.mktemp("users") / "users.yaml"
    grants = {"a": ["admin:shop-"], "b": ["admin"]}
    users = [
        {"name": name, "grants": given, "tokens": [{"id": name * 12, "hash": HASH}]} for name, given in grants.items()
    ]
    path.write_text(yaml.safe_dump({"users": users}))
    authenticator = Authenticator(UserFile(path), decoy_hash=HASH)
    cluster, checks = Cluster(), Checks()
    herder = FakeHerder(cluster)
    chosen = api_settings(
        {
            "leader_wait_s": 0.0,
            "catch_up_s": 0.0,
            "events_s_max": 0.0,
            "error_details": True,
            "gate": Gate(authenticator),
        }
    )
    transport = httpx.MockTransport(lambda request: httpx.Response(500))
    app = create_app(herder, settings=chosen, catalog=CATALOG, checks=checks, transport=transport)
    with asyncio.Runner() as runner:
        client = Client(runner, app, herder.view().url)
        client.cluster, client.checks = cluster, checks
        yield client
        client.close()
    authenticator.close()


def store(shop, name, secret, **more):
    """A stored config with a value for every key that decides on a place, and one secret."""
    given = {place: f"old-{place}" for place in destinations(name) if keys_of(name)[place].type != "PASSWORD"}
    config = {**given, "connector.class": name, secret: CANARY, **more}
    shop.cluster.state = Cluster().state
    shop.cluster.add("shop-it", config)
    stored = {"name": "shop-it", **config}
    connector = shop.cluster.state.connectors["shop-it"]
    assert stored.items() <= connector.config.items()
    # The helper's own keys are those of another class.
    for own in ("host", "password"):
        if own not in stored:
            connector.config.pop(own, None)
    return stored


def ask(shop, headers, secret, stored, change):
    """The ways in which a kept secret comes with another config."""
    url = "/connectors/shop-it/config"
    whole = {name: value for name, value in {**stored, secret: "****", **change}.items() if value is not None}
    validate = f"/connector-plugins/{stored['connector.class']}/config/validate"
    if "connector.class" not in change:
        yield shop.put(validate, json=whole, headers=headers)
    yield shop.patch(url, json=change, headers=headers)
    yield shop.patch(url, json={**change, secret: "****"}, headers=headers)
    yield shop.put(url, json=whole, headers=headers)


def code_of(answer):
    body = answer.json()
    return body.get("code") if isinstance(body, dict) else None


def other(name):
    return next(plugin for plugin in PLUGINS if plugin != name)


def test_there_are_pairs_of_every_connector_that_has_secrets():
    assert {name for name, _, _ in PAIRS} == {
        "datagen",
        "http",
        "http-sink",
        "jdbc-sink",
        "kafka",
        "mariadb",
        "mysql",
        "nats",
        "opensearch",
        "postgres",
        "query",
        "rabbitmq",
        "redis",
        "s3",
        "spark",
        "stdout",
    }
    assert len(PAIRS) >= 60


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "secret"), sorted({(name, secret) for name, secret, _ in PAIRS}))
def test_a_kept_secret_is_not_sent_to_another_place(shop, name, secret):
    """For every key that decides on a place: another value, and none at all."""
    asked = len(shop.checks.asked)
    passed = []
    for place in (place for of, kept, place in PAIRS if (of, kept) == (name, secret)):
        value = other(name) if place == "connector.class" else "evil"
        for change in ({place: value}, {place: None}):
            if place == "connector.class" and change[place] is None:
                continue
            stored = store(shop, name, secret, **({place: "x=y"} if keys_of(name)[place].type == "PASSWORD" else {}))
            for answer in ask(shop, TENANT, secret, stored, change):
                assert CANARY not in answer.text
                # Of another class the key of a secret may be unknown: then the config is refused as it is, or for the
                # connection that it names.
                of_class = {"rest.invalid_config", "rest.not_permitted"}
                refusals = {CODE, *of_class} if place == "connector.class" else {CODE}
                if answer.status_code not in (400, 403) or code_of(answer) not in refusals:
                    passed.append((place, answer.status_code, code_of(answer)))
    assert passed == []
    assert len(shop.checks.asked) == asked, "nothing was connected to"


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "secret"), sorted({(name, secret) for name, secret, _ in PAIRS}))
def test_a_place_that_is_new_is_another_place(shop, name, secret):
    for place in destinations(name):
        if place in (secret, "connector.class"):
            continue
        stored = store(shop, name, secret)
        stored.pop(place, None)
        shop.cluster.state.connectors["shop-it"].config.pop(place, None)
        for answer in ask(shop, TENANT, secret, stored, {place: "evil"}):
            assert code_of(answer) == CODE, place


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "secret"), sorted({(name, secret) for name, secret, _ in PAIRS}))
def test_what_decides_on_no_place_may_change_with_a_kept_secret(shop, name, secret):
    """All of it at once. Validation may refuse the values; the rule on secrets, which comes first, does not."""
    harmless = [
        key for key in keys_of(name).values() if not key.connects and key.type != "PASSWORD" and key.name != "name"
    ]
    assert len(harmless) > 20
    place = next(place for place in destinations(name) if place not in (secret, "connector.class"))
    for more, is_refused in (({}, False), ({place: "evil"}, True)):
        stored = store(shop, name, secret, **(EXAMPLE if name == "postgres" else {}))
        change = {key.name: None if key.name in stored else default_text(key) or "1" for key in harmless} | more
        for answer in itertools.islice(ask(shop, TENANT, secret, stored, change), 2):
            assert (code_of(answer) == CODE) is is_refused, answer.text


def test_a_tenant_goes_on_working_on_his_connector(shop):
    config = {
        "name": "shop-it", "connector.class": "spark", "topics": "shop-a", "warehouse": "iceberg", "warehouse.catalog": "rest",
        "warehouse.catalog.uri": "http://catalog.example", "warehouse.catalog.secrets": f"token={CANARY}",
    }  # fmt: skip
    shop.cluster.state = Cluster().state
    shop.cluster.add("shop-it", config)
    for own in ("host", "password"):
        shop.cluster.state.connectors["shop-it"].config.pop(own)
    url = "/connectors/shop-it/config"
    read = shop.get(url, headers=TENANT).json()
    assert read["warehouse.catalog.secrets"] == "****"
    assert shop.put(url, json={**read, "trigger.interval.ms": "1000"}, headers=TENANT).status_code == 200
    assert shop.patch(url, json={"topics": "shop-b"}, headers=TENANT).status_code == 200
    refused = shop.patch(url, json={"warehouse.catalog.uri": "http://evil.example"}, headers=TENANT)
    assert (refused.status_code, code_of(refused)) == (400, CODE)
    moved = {"warehouse.catalog.uri": "http://new.example", "warehouse.catalog.secrets": "token=another"}
    assert shop.patch(url, json=moved, headers=TENANT).status_code == 200
    assert shop.patch(url, json={"warehouse.catalog.uri": "http://third.example"}, headers=ADMIN).status_code == 200


def test_of_a_connector_that_cannot_be_loaded_every_stored_key_may_be_a_place():
    def broken(name):
        raise registry.CdcError("config.unknown_connector", "gone")

    catalog = ConnectorCatalog(lookup=broken)
    stored = {"connector.class": "later", "later.somewhere": "a", "later.password": "p"}
    assert catalog.moved_destinations({**stored, "later.somewhere": "b"}, stored) == ["later.somewhere"]


@pytest.mark.parametrize("name", sorted(PLUGINS))
def test_a_key_whose_name_speaks_of_a_place_says_whether_it_is_one(name):
    """A new key fails here until its definition says `connects=True` or `connects=False`."""
    unsaid = [
        key.name
        for key in keys_of(name).values()
        if key.connects is None and key.group != NOT_AVAILABLE and SPEAKS_OF_A_PLACE.search(key.name)
    ]
    assert unsaid == []
    assert [key.name for key in keys_of(name).values() if key.type == "PASSWORD" and key.connects is None] == []


def test_the_keys_that_were_found_to_redirect_secrets_are_destinations():
    assert {
        *(
            "database.hostname",
            "database.port",
            "database.user",
            "database.dbname",
            "database.sslmode",
            "database.sslrootcert",
        ),
        *("database.sslcert", "database.sslkey", "database.transport", "connector.class"),
    } <= set(destinations("postgres"))
    assert {
        *(
            "warehouse",
            "warehouse.hostname",
            "warehouse.port",
            "warehouse.user",
            "warehouse.dbname",
            "warehouse.sslmode",
        ),
        *("warehouse.sslrootcert", "warehouse.path", "warehouse.catalog", "warehouse.catalog.uri"),
        *(
            "warehouse.catalog.properties",
            "warehouse.catalog.secrets",
            "spark.launcher",
            "spark.master",
            "spark.archives",
        ),
        *("spark.driver.host", "spark.driver.port", "spark.properties", "spark.pyspark.python", "connector.class"),
    } <= set(destinations("spark"))
    assert {"file"} <= set(destinations("file")) & set(destinations("file-sink"))
