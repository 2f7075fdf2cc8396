"""The targets that a connector's config may name: hosts, certificate files, Spark clusters and archives. Checked before
use."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Final

from cdcworker.connectors.config import allowed_hosts, server_authentication, tls_policy, worker_logins
from cdcworker.connectors.config.definition import parse_list
from cdcworker.connectors.config.tls_policy import MODES, TLS_NOT_ENOUGH
from cdcworker.connectors.registry import names as registry
from cdcworker.connectors.spark.runtime.cluster import ARCHIVES as ARCHIVES_KEY
from cdcworker.connectors.spark.runtime.cluster import RUN_BY_EXECUTORS, masters, pair, place_of
from cdcworker.schemas.errors import CdcError, declare

PATH_NOT_ALLOWED: Final = declare(
    "config.path_not_allowed",
    "config",
    "The worker's settings do not let connectors read this file",
    "Put the file into one of the folders of the worker property connector.tls.paths, or add its folder there.",
)
HOSTS: Final = "connector.hosts.allowed"
LOOPBACK: Final = "connector.hosts.loopback"
LAKE_HOSTS: Final = "connector.lake.hosts"
TLS_PATHS: Final = "connector.tls.paths"
MASTER_NOT_ALLOWED: Final = declare(
    "config.master_not_allowed",
    "config",
    "The worker's settings do not let connectors run on this cluster of Spark's",
    "Add the value of spark.master to the worker property connector.spark.masters, or leave spark.launcher local.",
)
ARCHIVE_NOT_ALLOWED: Final = declare(
    "config.archive_not_allowed",
    "config",
    "The worker's settings do not let connectors hand this archive, library or image to executors",
    "Add it to the worker property connector.spark.archives as it stands in the config, an archive without #name.",
)
ARCHIVES: Final = "connector.spark.archives"
MASTERS: Final = "connector.spark.masters"
MASTER_KEY: Final = "spark.master"
PROPERTIES_KEY: Final = "spark.properties"
TLS: Final = tls_policy.PROPERTY
WEAKEST_AUTH: Final = "connector.auth.weakest"
LIBPQ_DEFAULTS: Final = worker_logins.PROPERTY
MODE_GIVEN_NONE: Final = "prefer"
FILE_KEY: Final = re.compile(r".*\.(sslcert|sslkey|sslrootcert|sslcrl)")
LISTED: Final = (ARCHIVES, HOSTS, LAKE_HOSTS, MASTERS, TLS_PATHS)
"""The properties that are lists."""
SYSTEM: Final = "system"
"""libpq's word for the certificate authorities of the machine."""


def admit(config: Mapping[str, str], rules: Mapping[str, str]) -> None:
    """Checks a config with resolved references in the process that is going to use it. CdcError for what is not
    allowed.

    `rules` are the worker's properties. A rule that is missing is not checked: a person may examine a source with a
    file of his own.
    """
    allowed_hosts.use(policy_of(rules))
    server_authentication.use(rules.get(WEAKEST_AUTH, server_authentication.METHODS[0]))
    worker_logins.use(rules.get(LIBPQ_DEFAULTS, "true") == "true")
    needed = rules.get(TLS, tls_policy.LEVELS[0])
    tls_policy.use(needed)
    _check_tls(config, MODES[needed])
    check_master(config.get(MASTER_KEY, ""), rules)
    check_archives(parse_list(config.get(ARCHIVES_KEY, "")), rules)
    check_run_by_executors(parse_list(config.get(PROPERTIES_KEY, "")), rules)
    if TLS_PATHS not in rules:
        return
    roots = parse_list(rules[TLS_PATHS])
    for name, value in config.items():
        if FILE_KEY.fullmatch(name) and value and value != SYSTEM:
            check_path(name, value, roots)


def _check_tls(config: Mapping[str, str], enough: tuple[str, ...]) -> None:
    """Checks connections that leave this machine; a connection to a host name counts as one."""
    for name in sorted(config) if enough else ():
        room, _, last = name.rpartition(".")
        if last != "hostname" or all(allowed_hosts.is_loopback(host) for host in config[name].split(",")):
            continue
        key = f"{room}.{_tls_key(config)}"
        mode = tls_policy.sslmode_of(config.get(key, "").strip() or MODE_GIVEN_NONE)
        if mode not in enough:
            text = f"{key} {mode} is not enough for {TLS} on this worker; it takes {' or '.join(enough)}"
            raise CdcError(TLS_NOT_ENOUGH, text, where={"key": key})


def _tls_key(config: Mapping[str, str]) -> str:
    try:
        return registry.lookup(config.get("connector.class", "")).tls_key
    except CdcError:
        return "sslmode"


def check_master(master: str, rules: Mapping[str, str]) -> None:
    """Checks the Spark master: executors send objects to the driver, which runs on the worker, so a connector's author
    must not choose the cluster freely.

    Each of several masters has to be allowed.
    """
    if MASTERS not in rules or not master.strip():
        return
    allowed = parse_list(rules[MASTERS])
    if not all(one in allowed for one in masters(master.strip())):
        text = f"{MASTER_KEY} names a master that is not in {MASTERS}"
        raise CdcError(MASTER_NOT_ALLOWED, text, where={"key": MASTER_KEY})


def check_archives(archives: Iterable[str], rules: Mapping[str, str]) -> None:
    """Checks archives: the driver reads them with the worker's rights, and executors run their content."""
    allowed = parse_list(rules.get(ARCHIVES, ""))
    if ARCHIVES in rules and not all(place_of(archive) in allowed for archive in archives):
        text = f"{ARCHIVES_KEY} names an archive that is not in {ARCHIVES}"
        raise CdcError(ARCHIVE_NOT_ALLOWED, text, where={"key": ARCHIVES_KEY})


def check_run_by_executors(properties: Iterable[str], rules: Mapping[str, str]) -> None:
    """Checks settings of Spark that say what executors run: libraries, which the driver uploads where they are files of the
    worker's, and images. They have to be in the same list as archives."""
    allowed = parse_list(rules.get(ARCHIVES, ""))
    for name, value in map(pair, properties):
        if ARCHIVES in rules and name in RUN_BY_EXECUTORS and value not in allowed:
            text = f"{name} in {PROPERTIES_KEY} names what is not in {ARCHIVES}"
            raise CdcError(ARCHIVE_NOT_ALLOWED, text, where={"key": PROPERTIES_KEY})


def policy_of(rules: Mapping[str, str]) -> allowed_hosts.HostPolicy:
    """Returns the policy for hosts that the worker's properties describe."""
    allowed, lake = (allowed_hosts.parse_allowed(parse_list(rules.get(name, ""))) for name in (HOSTS, LAKE_HOSTS))
    return allowed_hosts.HostPolicy(allowed, rules.get(LOOPBACK, "true").lower() == "true", lake)


def check_path(key: str, path: str, roots: Iterable[str]) -> None:
    """CdcError unless the file lies in one of the folders after its links are followed. A file elsewhere is not even
    looked up."""
    if not is_inside(path, roots) or not is_inside(os.path.realpath(path), map(os.path.realpath, roots)):
        raise CdcError(PATH_NOT_ALLOWED, f"{key} names a file outside of {TLS_PATHS}", where={"key": key})


def is_inside(path: str, roots: Iterable[str]) -> bool:
    """Returns whether a path lies in one of the folders by its text alone; a path with `..` does not."""
    if not path.startswith("/") or "\0" in path or ".." in path.split("/"):
        return False
    plain = os.path.normpath("/" + path.lstrip("/"))
    return any(
        plain == root or plain.startswith(root.rstrip("/") + "/")
        for root in (os.path.normpath(root.strip()) for root in roots if root.strip().startswith("/"))
    )
