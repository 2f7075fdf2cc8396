"""What a connector's config may reach besides its secrets: hosts, files of certificates, clusters of Spark's. Asked before it
is used."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Final

from cdcworker.connectors import hosts
from cdcworker.connectors.config import parse_list
from cdcworker.connectors.spark.cluster import ARCHIVES as ARCHIVES_KEY
from cdcworker.connectors.spark.cluster import masters, place_of
from cdcworker.schemas.errors import CdcError, declare

PATH_NOT_ALLOWED: Final = declare(
    "config.path_not_allowed",
    "config",
    "The worker's settings do not let connectors read this file",
    "Put the file into one of the folders of the worker property connector.tls.paths, or add its folder there.",
)
HOSTS: Final = "connector.hosts.allowed"
LOOPBACK: Final = "connector.hosts.loopback"
TLS_PATHS: Final = "connector.tls.paths"
TLS_NOT_ENOUGH: Final = declare(
    "config.tls_not_enough",
    "config",
    "The worker's settings ask for more TLS than the connector's config",
    "Set the sslmode that the message names, for verify-full with sslrootcert: a file of authorities, or system.",
)
MASTER_NOT_ALLOWED: Final = declare(
    "config.master_not_allowed",
    "config",
    "The worker's settings do not let connectors run on this cluster of Spark's",
    "Add the value of spark.master to the worker property connector.spark.masters, or leave spark.launcher local.",
)
ARCHIVE_NOT_ALLOWED: Final = declare(
    "config.archive_not_allowed",
    "config",
    "The worker's settings do not let connectors hand this archive to executors",
    "Add its path, without #name, to the worker property connector.spark.archives.",
)
ARCHIVES: Final = "connector.spark.archives"
MASTERS: Final = "connector.spark.masters"
MASTER_KEY: Final = "spark.master"
TLS: Final = "connector.tls"
MODES: Final = {
    "any": (),
    "encrypted": ("require", "verify-ca", "verify-full"),
    "verified": ("verify-full",),
}
"""By what the operator asks for: the modes of libpq that give it. `require` takes whoever answers for the server."""
MODE_GIVEN_NONE: Final = "prefer"
FILE_KEY: Final = re.compile(r".*\.(sslcert|sslkey|sslrootcert|sslcrl)")
SYSTEM: Final = "system"
"""libpq's word for the machine's own authorities."""


def admit(config: Mapping[str, str], rules: Mapping[str, str]) -> None:
    """For the process that is going to use this config, references resolved. `rules` are the worker's properties; those
    that are not there are of no concern: a person examines a source with a file of his own."""
    hosts.use(policy_of(rules))
    _check_tls(config, MODES[rules.get(TLS, "any")])
    check_master(config.get(MASTER_KEY, ""), rules)
    check_archives(parse_list(config.get(ARCHIVES_KEY, "")), rules)
    if TLS_PATHS not in rules:
        return
    roots = parse_list(rules[TLS_PATHS])
    for name, value in config.items():
        if FILE_KEY.fullmatch(name) and value and value != SYSTEM:
            check_path(name, value, roots)


def _check_tls(config: Mapping[str, str], enough: tuple[str, ...]) -> None:
    """Connections that leave this machine: those to a name count as that, wherever it leads."""
    for name in sorted(config) if enough else ():
        room, _, last = name.rpartition(".")
        if last != "hostname" or all(hosts.is_loopback(host) for host in config[name].split(",")):
            continue
        key = f"{room}.sslmode"
        mode = config.get(key, "").strip() or MODE_GIVEN_NONE
        if mode not in enough:
            text = f"{key} {mode} is not enough for {TLS} on this worker; it takes {' or '.join(enough)}"
            raise CdcError(TLS_NOT_ENOUGH, text, where={"key": key})


def check_master(master: str, rules: Mapping[str, str]) -> None:
    """Executors hand objects to a driver, which is a process of the worker's: whoever may create a connector must not
    choose from where. Of masters that stand in for each other each has to be allowed."""
    if MASTERS not in rules or not master.strip():
        return
    allowed = parse_list(rules[MASTERS])
    if not all(one in allowed for one in masters(master.strip())):
        text = f"{MASTER_KEY} names a master that is not in {MASTERS}"
        raise CdcError(MASTER_NOT_ALLOWED, text, where={"key": MASTER_KEY})


def check_archives(archives: Iterable[str], rules: Mapping[str, str]) -> None:
    """A driver reads them with the worker's rights, and executors run what is in them."""
    allowed = parse_list(rules.get(ARCHIVES, ""))
    if ARCHIVES in rules and not all(place_of(archive) in allowed for archive in archives):
        text = f"{ARCHIVES_KEY} names an archive that is not in {ARCHIVES}"
        raise CdcError(ARCHIVE_NOT_ALLOWED, text, where={"key": ARCHIVES_KEY})


def policy_of(rules: Mapping[str, str]) -> hosts.Policy:
    allowed = hosts.parse_allowed(parse_list(rules.get(HOSTS, "")))
    return hosts.Policy(allowed, rules.get(LOOPBACK, "true").lower() == "true")


def check_path(key: str, path: str, roots: Iterable[str]) -> None:
    """Whether it lies in one of the folders, with its links followed. What lies elsewhere is not even looked for."""
    if not is_inside(path, roots) or not is_inside(os.path.realpath(path), map(os.path.realpath, roots)):
        raise CdcError(PATH_NOT_ALLOWED, f"{key} names a file outside of {TLS_PATHS}", where={"key": key})


def is_inside(path: str, roots: Iterable[str]) -> bool:
    """By the words of the path alone; one that goes up is outside."""
    if not path.startswith("/") or "\0" in path or ".." in path.split("/"):
        return False
    plain = os.path.normpath("/" + path.lstrip("/"))
    return any(
        plain == root or plain.startswith(root.rstrip("/") + "/")
        for root in (os.path.normpath(root.strip()) for root in roots if root.strip().startswith("/"))
    )
