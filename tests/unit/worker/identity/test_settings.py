"""The properties of an identity provider: what does not go together keeps a worker from starting."""

import pytest
import yaml
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.config.worker_properties import parse
from cdcworker.worker.identity.settings import settings_of
from cdcworker.worker.server.wiring import NOBODY, gate_of, identity_of, secrets_of

BASE = {"bootstrap.servers": "k:9092", "group.id": "g", "rest.advertised.host.name": "me"}
OIDC = {"rest.oidc.issuer": "https://login.test", "rest.oidc.access.file": "/roles.yaml", "rest.oidc.audience": "cdc"}
CONSOLE = {
    "rest.oidc.client.id": "console",
    "rest.oidc.console.url": "https://cdc.test/ui/",
    "inter.worker.secret.file": "/secret",
}


def values(**more):
    return parse({**BASE, **{key.replace("_", "."): value for key, value in more.items()}})[0].values


def problem(properties):
    with pytest.raises(CdcError) as caught:
        settings_of(parse({**BASE, **properties})[0].values)
    assert caught.value.code == "config.invalid"
    return caught.value.message


def test_without_an_issuer_there_is_none():
    assert settings_of(values()) is None
    assert identity_of(values(), {}, lambda: ()) is NOBODY


@pytest.mark.parametrize(
    "key",
    ["audience", "authorized.parties", "jwks.url", "access.file", "truststore.location", "client.id", "console.url"],
)
def test_a_property_without_the_issuer_is_no_accident(key):
    value = "https://a.test/ui/" if key.endswith("url") else "x"
    assert f"rest.oidc.{key}" in problem({f"rest.oidc.{key}": value})


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"rest.oidc.access.file": ""}, "rest.oidc.access.file"),
        ({"rest.oidc.audience": ""}, "nobody gets in"),
        ({**CONSOLE, "rest.oidc.console.url": ""}, "rest.oidc.console.url"),
        ({**CONSOLE, "inter.worker.secret.file": ""}, "inter.worker.secret.file"),
        ({**CONSOLE, "ui.enabled": "false"}, "ui.enabled=false"),
        ({"rest.oidc.console.url": "https://cdc.test/ui/"}, "rest.oidc.client.id"),
        ({"rest.oidc.client.secret": "x"}, "rest.oidc.client.id"),
        ({"rest.oidc.issuer": "http://login.test"}, "https://"),
        ({"rest.oidc.issuer": "https://"}, "no address"),
        ({"rest.oidc.issuer": "file:///etc/passwd"}, "no address"),
        ({"rest.oidc.issuer": "gopher://login.test/"}, "https://"),
        ({"rest.oidc.issuer": "https://a:b@login.test"}, "login"),
        ({"rest.oidc.issuer": "https://login.test:99999"}, "no address"),
        ({"rest.oidc.jwks.url": "http://169.254.169.254/keys"}, "https://"),
        ({**CONSOLE, "rest.oidc.console.url": "https://cdc.test/"}, "/ui/"),
        ({**CONSOLE, "rest.oidc.console.url": "http://cdc.test/ui/"}, "https://"),
        ({**CONSOLE, "rest.oidc.console.url": "https://cdc.test/a;b/ui/"}, "/ui/"),
        ({"rest.oidc.algorithms": "RS256,HS256"}, "rest.oidc.algorithms"),
        ({"rest.oidc.algorithms": "none"}, "rest.oidc.algorithms"),
        ({"rest.oidc.algorithms": ""}, "rest.oidc.algorithms"),
        ({**CONSOLE, "rest.oidc.session.ttl.ms": "86400001"}, "rest.oidc.session.ttl.ms"),
    ],
)
def test_what_does_not_go_together_is_told(change, told):
    assert told in problem({**OIDC, **change})


def test_what_is_said_is_taken():
    found = settings_of(parse({**BASE, **OIDC, **CONSOLE, "rest.oidc.scopes": "roles,openid"})[0].values)
    assert (found.issuer, found.audience) == ("https://login.test", ("cdc",))
    assert found.client.scopes == ("openid", "roles")
    assert found.client.callback == "https://cdc.test/ui/callback"
    assert found.client.session_s == 8 * 3600
    assert "HS256" not in found.algorithms


def test_a_secret_does_not_print():
    found = settings_of(parse({**BASE, **OIDC, **CONSOLE, "rest.oidc.client.secret": "canary-5"})[0].values)
    assert "canary" not in repr(found)
    assert found.client.secret.reveal() == "canary-5"


def test_with_a_provider_a_worker_may_listen_on_the_network():
    parse({**BASE, **OIDC, "listeners": "http://0.0.0.0:1"})
    with pytest.raises(CdcError) as caught:
        parse({**BASE, "listeners": "http://0.0.0.0:1"})
    assert "rest.oidc.issuer" in caught.value.hint
    _, warnings = parse({**BASE, **OIDC, "listeners": "http://0.0.0.0:1"})
    assert any("inter.worker.secret.file is not set" in warning for warning in warnings)


def test_the_parts_of_a_worker(tmp_path):
    roles, secret = tmp_path / "roles.yaml", tmp_path / "secret"
    roles.write_text(yaml.safe_dump({"roles": {"a": ["read"]}}))
    secret.write_text("s" * 40)
    for path in (roles, secret):
        path.chmod(0o600)
    own = {"rest.oidc.access.file": str(roles), "inter.worker.secret.file": str(secret)}
    found = parse({**BASE, **OIDC, **CONSOLE, **own})[0].values
    parts = identity_of(found, {}, secrets_of(found, {}))
    assert parts.tokens
    assert parts.sessions
    assert parts.login
    gate = gate_of(found, identity=parts)
    assert gate.is_closed
    assert (gate.tokens, gate.sessions) == (parts.tokens, parts.sessions)
    bearer_only = parse({**BASE, **OIDC, **own})[0].values
    assert identity_of(bearer_only, {}, lambda: ()).login is None


@pytest.mark.parametrize("content", ["roles: [", "no: 1"])
def test_a_file_that_cannot_be_used_keeps_a_worker_from_starting(tmp_path, content):
    path = tmp_path / "roles.yaml"
    path.write_text(content)
    path.chmod(0o600)
    found = parse({**BASE, **OIDC, "rest.oidc.access.file": str(path)})[0].values
    with pytest.raises(CdcError) as caught:
        identity_of(found, {}, lambda: ())
    assert caught.value.code == "oidc.file_invalid"


def test_a_file_that_connectors_could_write_keeps_a_worker_from_starting(tmp_path):
    path = tmp_path / "roles.yaml"
    path.write_text("roles: {}")
    path.chmod(0o600)
    found, _ = parse({**BASE, **OIDC, "rest.oidc.access.file": str(path), "file.connector.paths": str(tmp_path)})
    with pytest.raises(CdcError, match="connectors could read it"):
        identity_of(found.values, found.providers, lambda: ())


def test_a_truststore_that_cannot_be_read_keeps_a_worker_from_starting(tmp_path):
    path = tmp_path / "roles.yaml"
    path.write_text("roles: {}")
    path.chmod(0o600)
    own = {"rest.oidc.access.file": str(path), "rest.oidc.truststore.location": str(path)}
    with pytest.raises(CdcError, match="truststore"):
        identity_of(parse({**BASE, **OIDC, **own})[0].values, {}, lambda: ())
