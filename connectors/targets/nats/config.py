"""The keys of the sink into NATS."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from cdcworker.connectors.config.allowed_hosts import host_list
from cdcworker.connectors.config.definition import ConfigDef, ConfigKey, between, matches, one_of
from cdcworker.connectors.network.tls import tls_checks, tls_keys
from cdcworker.connectors.record_sink.config import config_def
from cdcworker.connectors.targets import templates

PORT: Final = 4222
_SERVER: Final = re.compile(
    r"(?P<scheme>nats://|tls://)?(?P<host>\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(?::(?P<port>[0-9]{1,5}))?"
)
_PART: Final = r"[^\s.*>\x00-\x1f\x7f]+"
_SUBJECTS: Final = matches(rf"({_PART}|\*)(\.({_PART}|\*))*(\.>)?", "a subject, which may end with .>")
_NAME: Final = r"[A-Za-z0-9_-]{1,200}"


class NatsAddress(NamedTuple):
    host: str
    port: int


def places_of(config: Mapping[str, Any]) -> list[NatsAddress]:
    """Returns the servers that a parsed config names."""
    found = (_SERVER.fullmatch(text) for text in config["nats.servers"])
    return [NatsAddress(one["host"].strip("[]"), int(one["port"] or PORT)) for one in found if one]


def is_secure(config: Mapping[str, Any]) -> bool:
    """Returns whether connections have TLS."""
    return bool(config["nats.ssl.enabled"]) or any(text.startswith("tls://") for text in config["nats.servers"])


def subjects_of(config: Mapping[str, Any]) -> list[str]:
    """Returns the subjects of a stream that is made; none: they do not follow from the template."""
    if config["nats.stream.subjects"]:
        return list(config["nats.stream.subjects"])
    text = config["nats.subject.template"]
    if not templates.has_places(text):
        return [text]
    fixed, dot, _ = text.partition("${")[0].rpartition(".")
    return [f"{fixed}.>"] if dot else []


def _servers(value: list[str]) -> str | None:
    for text in value:
        found = _SERVER.fullmatch(text)
        if not found or (found["port"] is not None and not 0 < int(found["port"]) < 65_536):
            return "expects HOST:PORT, nats://HOST:PORT or tls://HOST:PORT, without a login, separated by commas"
        if problem := host_list(found["host"].strip("[]")):
            return problem
    return None if value else "expects a server"


def takes(wanted: str, subject: str) -> bool:
    """Returns whether a subject is one of those that a stream's subject, with `*` and `>`, stands for."""
    parts, given = wanted.split("."), subject.split(".")
    if parts[-1] == ">":
        parts.pop()
        if len(given) <= len(parts):
            return False
    elif len(given) != len(parts):
        return False
    return all(part in ("*", each) for part, each in zip(parts, given, strict=False))


def _template(value: str) -> str | None:
    if problem := templates.problem(value, whole=False):
        return problem
    return _SUBJECT_FORM(templates.filled_with(value, "x"))


_SUBJECT_FORM: Final = matches(rf"{_PART}(\.{_PART})*", "a subject without wildcards, with places such as ${topic}")


def _subjects(value: list[str]) -> str | None:
    return next(filter(None, map(_SUBJECTS, value)), None)


def _place_keys() -> Iterable[ConfigKey]:
    group = "Server"
    yield ConfigKey(
        "nats.servers", "LIST", required=True, importance="HIGH", group=group, validator=_servers, connects=True,
        doc="Servers of NATS, as nats://HOST:PORT or with TLS tls://HOST:PORT. They are tried in turn; others that they name are not.",
    )  # fmt: skip
    yield ConfigKey(
        "nats.username",
        default="",
        group=group,
        connects=False,
        of_server=True,
        doc="The user of a login with a password.",
    )
    yield ConfigKey(
        "nats.password", "PASSWORD", group=group, connects=False, doc="The password; best a reference such as ${file:/path}.",
    )  # fmt: skip
    yield ConfigKey("nats.token", "PASSWORD", group=group, connects=False, doc="A token instead of a user.")
    yield ConfigKey(
        "nats.nkey.seed", "PASSWORD", group=group, connects=False, doc="The seed of an NKey instead of a user."
    )
    yield ConfigKey(
        "nats.credentials", "PASSWORD", group=group, connects=False,
        doc="The text of a credentials file, with a user's JWT and seed; best a reference such as ${file:/path}.",
    )  # fmt: skip
    yield ConfigKey(
        "nats.connect.timeout.ms", "INT", 10_000, group=group, validator=between(1, 600_000), connects=False,
        doc="Longest wait for a connection.",
    )  # fmt: skip
    yield ConfigKey(
        "nats.request.timeout.ms", "INT", 30_000, group=group, validator=between(1, 3_600_000), connects=False,
        doc="Longest wait for the acknowledgements of a batch; the whole batch has target.timeout.ms.",
    )  # fmt: skip
    yield ConfigKey(
        "nats.ssl.enabled", "BOOLEAN", False, group="TLS", connects=True,
        doc="Whether connections have TLS; the server's certificate is always verified.",
    )  # fmt: skip


def _stream_keys() -> Iterable[ConfigKey]:
    group = "Stream"
    yield ConfigKey(
        "nats.stream", required=True, importance="HIGH", group=group, validator=matches(_NAME, "the name of a stream"),
        doc="The stream that takes the messages.",
    )  # fmt: skip
    yield ConfigKey(
        "nats.subject.template", default="cdc.${topic}", importance="HIGH", group=group, validator=_template,
        doc="The subject of a message, with places such as ${topic}, ${key} and ${value.after.tenant}.",
    )  # fmt: skip
    yield ConfigKey(
        "nats.stream.create", "BOOLEAN", True, group=group, doc="Whether the stream is made where it is not there.",
    )  # fmt: skip
    yield ConfigKey(
        "nats.stream.subjects", "LIST", [], group=group, validator=_subjects,
        doc="Subjects of a stream that is made. Default: what nats.subject.template begins with, and all below it.",
    )  # fmt: skip
    yield ConfigKey(
        "nats.stream.replicas", "INT", 1, group=group, validator=between(1, 5), doc="Replicas of a stream that is made.",
    )  # fmt: skip
    yield ConfigKey(
        "nats.stream.max.age.ms", "LONG", 0, group=group, validator=between(0),
        doc="How long a stream that is made keeps a message; 0: for ever.",
    )  # fmt: skip
    yield ConfigKey(
        "nats.stream.duplicate.window.ms", "LONG", 3_600_000, group=group, validator=between(100),
        doc="How long the server remembers ids in a stream that is made. A stream that is there should remember them for as long: the"
        " task and the doctor warn otherwise.",
    )  # fmt: skip
    yield ConfigKey(
        "nats.publish.pending.max", "INT", 256, group=group, validator=between(1, 100_000),
        doc="Most messages without an acknowledgement. Of one lane; each partition is in one lane at a time.",
    )  # fmt: skip


def _body_keys() -> Iterable[ConfigKey]:
    group = "Messages"
    yield ConfigKey(
        "nats.format", default="event", group=group, validator=one_of("event", "value"), recommended=("event", "value"),
        doc="event: an object with id, topic, partition, offset, timestamp, key and value. value: the record's value alone.",
    )  # fmt: skip
    yield ConfigKey(
        "nats.schemas.bucket", default="", group=group, validator=matches(rf"({_NAME})?", "the name of a bucket"),
        doc="A bucket of keys and values that has the schema of each message's key and value before the message is there. It is made where"
        " it is not there. Empty: schemas are not written.",
    )  # fmt: skip


def _checks(config: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    logins = [name for name in ("nats.username", "nats.token", "nats.nkey.seed", "nats.credentials") if config[name]]
    if len(logins) > 1:
        yield logins[1], f"takes the place of {logins[0]}: set one of them"
    if bool(config["nats.username"]) != bool(config["nats.password"]):
        yield "nats.password", "is needed with nats.username, and only there"
    if config["nats.stream.create"] and not subjects_of(config):
        yield "nats.stream.subjects", "is needed: nats.subject.template begins with a place"
    if 0 < config["nats.stream.max.age.ms"] < config["nats.stream.duplicate.window.ms"]:
        yield "nats.stream.duplicate.window.ms", "is longer than nats.stream.max.age.ms"
    yield from tls_checks(config, "nats.ssl.", "" if is_secure(config) else "nats.ssl.enabled=false")


CONFIG_DEF: Final[ConfigDef] = config_def(
    [*_place_keys(), *tls_keys("nats.ssl."), *_stream_keys(), *_body_keys()], {}, _checks
)
