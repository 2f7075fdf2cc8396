"""The keys of an existing schema registry, as Confluent's converters have them, for keys and for values."""

from __future__ import annotations

import base64
import ipaddress
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from cdcworker.connectors.config.converters import flag, text_of
from cdcworker.connectors.config.definition import ConfigKey, Secret, has_reference, one_of, parse_list

REGISTRY_GROUP: Final = "Schema registry"
URL: Final = "schema.registry.url"
IDS: Final = "schema.registry.ids"
KEPT: Final = "kept"
OF_URL: Final = "url"
OWN: Final = "own"
STRATEGIES: Final = ("TopicNameStrategy", "RecordNameStrategy", "TopicRecordNameStrategy")
_PACKAGE: Final = "io.confluent.kafka.serializers.subject."
STRATEGY_CLASSES: Final = tuple(_PACKAGE + name for name in STRATEGIES)
SSL: Final = "schema.registry.ssl."
_ADDRESS: Final = re.compile(
    r"(?P<scheme>https?://)(?:(?P<login>[^@/?#\s]{1,1000})@)?"
    r"(?P<place>(?:\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(?::[0-9]{1,5})?(?:/[!-\[\]-~]*)?)"
)


@dataclass(frozen=True, slots=True)
class RegistrySettings:
    """What a config says of an existing registry for its keys or its values."""

    key: str
    """The key of the config that names it."""
    urls: tuple[str, ...]
    ids: str = KEPT
    strategy: str = STRATEGIES[0]
    auto_register: bool = True
    use_latest: bool = False
    normalize: bool = False
    authorization: Secret | None = field(default=None, repr=False)
    """The header, where the config has a login."""
    tls: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)
    """The PEM texts of TLS, by their keys behind `schema.registry.ssl.`."""
    unresolved: str = ""
    """The key of a login that is a reference which leads nowhere on this worker; empty: none is. It counts once the registry is asked."""


def registry_keys(side: str) -> Iterator[ConfigKey]:
    """Yields the keys. Whether a value is one that can be used is judged when a config is submitted: a connector that
    runs under a config that was taken before goes on."""
    at = f"{side}.converter."

    key = partial(_key, at)
    yield key(
        URL, "Addresses of an existing schema registry of Confluent's kind, separated by commas: schemas are registered there, and its ids"
        " are in the records. Default: the cluster's own.",
        importance="MEDIUM", connects=True, validator=_addresses_problem,
        note="A source whose topics have ids of the cluster's own registry keeps those, unless schema.registry.ids of this converter is url.",
    )  # fmt: skip
    yield key(
        IDS, "Whose ids are in the records: kept: those of the registry at the url, and those of the cluster's own where the connector's"
        " topics have such; url: always those of the registry at the url; own: always those of the cluster's own.",
        KEPT, validator=one_of(KEPT, OF_URL, OWN), recommended=(KEPT, OF_URL, OWN),
    )  # fmt: skip
    yield from _login_keys(at)
    yield key("auto.register.schemas", "Whether a schema that the registry does not have is registered.", True)
    yield key(
        "use.latest.version", "Without auto.register.schemas: records are written under the id of the subject's newest schema, if that is"
        " what is written.", False,
    )  # fmt: skip
    yield key(
        "normalize.schemas", "Whether the registry brings a schema into its normal form before it compares.", False
    )
    yield key(
        f"{side}.subject.name.strategy", "Which subject a schema is registered under: that of the topic, of the record, or of both.",
        STRATEGY_CLASSES[0], type="CLASS", validator=_strategy_problem, recommended=STRATEGY_CLASSES,
    )  # fmt: skip


def _key(at: str, name: str, doc: str, default: Any = None, **more: Any) -> ConfigKey:
    kind = more.pop("type", "BOOLEAN" if isinstance(default, bool) else "STRING")
    fixed = {"group": REGISTRY_GROUP, "importance": "LOW", "doc": doc, "of_task": False, "connects": False}
    return ConfigKey(f"{at}{name}", kind, default, **{**fixed, **more})


def _login_keys(at: str) -> Iterator[ConfigKey]:
    """Yields the keys of the login and of TLS."""
    key = partial(_key, at)
    yield key(
        "basic.auth.credentials.source", "Where the login is: USER_INFO: in basic.auth.user.info. URL: in the address, if there is one.",
        "URL", validator=one_of("URL", "USER_INFO"), recommended=("URL", "USER_INFO"),
    )  # fmt: skip
    yield key(
        "basic.auth.user.info", "The login, as USER:PASSWORD; best a reference such as ${file:/path}.", type="PASSWORD",
        former=f"{at}schema.registry.basic.auth.user.info",
    )  # fmt: skip
    yield key(
        "bearer.auth.credentials.source", "STATIC_TOKEN: the token is in bearer.auth.token.",
        validator=one_of("STATIC_TOKEN"), recommended=("STATIC_TOKEN",),
    )  # fmt: skip
    yield key(
        "bearer.auth.token", "A token that is sent with each request; best a reference such as ${file:/path}.", type="PASSWORD",
    )  # fmt: skip
    yield key(
        f"{SSL}truststore.certificates", "Authorities that may sign the registry's certificate, as PEM text.", type="PASSWORD", connects=True
    )  # fmt: skip
    yield key(
        f"{SSL}keystore.certificate.chain", "A certificate of this client with its chain, as PEM text.", type="PASSWORD"
    )
    yield key(f"{SSL}keystore.key", "Its key, as PEM text without a password.", type="PASSWORD")


def registry_of(config: Mapping[str, Any], side: str) -> RegistrySettings | None:
    """Returns the registry that a config names for one side, with its references resolved; None: it names none."""
    at = f"{side}.converter."
    found = [_address(url) for url in parse_list(text_of(config, at + URL))]
    ids = text_of(config, at + IDS, KEPT)
    parts = [match for match in found if match is not None]
    if not parts or len(parts) < len(found) or ids == OWN:
        return None
    return RegistrySettings(
        at + URL,
        tuple(match["scheme"] + match["place"].rstrip("/") for match in parts),
        ids,
        text_of(config, f"{at}{side}.subject.name.strategy", STRATEGY_CLASSES[0]).rpartition(".")[2],
        flag(config, at + "auto.register.schemas", True),
        flag(config, at + "use.latest.version", False),
        flag(config, at + "normalize.schemas", False),
        _authorization(config, at, next((match["login"] for match in parts if match["login"]), "")),
        {
            name: Secret(text) if (text := text_of(config, f"{at}{SSL}{name}")) else None
            for name in ("truststore.certificates", "keystore.certificate.chain", "keystore.key")
        },
        next((at + name for name in _LOGINS if has_reference(text_of(config, at + name))), ""),
    )


_LOGINS: Final = ("bearer.auth.token", "basic.auth.user.info", "schema.registry.basic.auth.user.info")


def _authorization(config: Mapping[str, Any], at: str, of_url: str) -> Secret | None:
    """Returns the header of the login: a token, that of its key, or that of the address."""

    token = text_of(config, at + "bearer.auth.token")
    if token:
        return Secret(f"Bearer {token}")
    login = text_of(config, at + "basic.auth.user.info") or text_of(config, f"{at}schema.registry.basic.auth.user.info")
    login = login or unquote(of_url)
    return Secret(f"Basic {base64.b64encode(login.encode()).decode()}") if login else None


def registry_checks(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields what of the keys does not go together."""
    for side in ("key", "value"):
        at = f"{side}.converter."
        if not config.get(at + URL):
            continue
        if config.get(at + "basic.auth.credentials.source") == "USER_INFO" and not config.get(
            at + "basic.auth.user.info"
        ):
            yield at + "basic.auth.user.info", "is needed with basic.auth.credentials.source=USER_INFO"
        for name, judge in (("basic.auth.user.info", _login_problem), ("bearer.auth.token", _token_problem)):
            secret = config.get(at + name)
            problem = judge(secret) if secret and not has_reference(secret.reveal()) else None
            if problem:
                yield at + name, problem
        if config.get(at + "bearer.auth.credentials.source") and not config.get(at + "bearer.auth.token"):
            yield at + "bearer.auth.token", "is needed with bearer.auth.credentials.source=STATIC_TOKEN"
        if config.get(at + "use.latest.version") and config.get(at + "auto.register.schemas"):
            yield (
                at + "use.latest.version",
                "is for auto.register.schemas=false: else the schema that is written is registered",
            )
        chain, key = f"{at}{SSL}keystore.certificate.chain", f"{at}{SSL}keystore.key"
        if bool(config.get(chain)) != bool(config.get(key)):
            yield (key, f"is needed with {chain}") if config.get(chain) else (chain, f"is needed with {key}")


def _address(url: str) -> re.Match[str] | None:
    """Returns the parts of an address, None for what is none."""
    found = _ADDRESS.fullmatch(url)
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname or ""
        if ":" in host:
            ipaddress.ip_address(host)
    except ValueError:
        return None
    return None if port == 0 or parts.query or parts.fragment else found


def _addresses_problem(value: str) -> str | None:
    for url in parse_list(value):
        if _address(url) is None:
            return "expects addresses such as https://registry.example.com:8081, separated by commas"
    return None


def _login_problem(value: Any) -> str | None:
    text = value.reveal()
    return None if ":" in text and text.isprintable() else "expects USER:PASSWORD"


def _token_problem(value: Any) -> str | None:
    return None if value.reveal().isprintable() else "expects one line without control characters"


def _strategy_problem(value: str) -> str | None:
    known = value.rpartition(".")[2] in STRATEGIES
    return None if known else f"expects one of {', '.join(STRATEGIES)}"
