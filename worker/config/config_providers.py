"""References to config providers, `${env:NAME}`, `${file:/path:key}` and `${dir:/path:name}`, resolved when a config is
used and only where the operator allows it."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from typing import Final

from cdcworker.connectors.config import secret_names
from cdcworker.connectors.config.definition import REFERENCE, ConfigDef, parse_list
from cdcworker.connectors.formats.registry_keys import REGISTRY_GROUP
from cdcworker.connectors.registry import names as registry
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.worker.config.inherited_converters import with_inherited
from cdcworker.worker.logs import redaction
from cdcworker.worker.security import allowed_targets

UNRESOLVED: Final = declare(
    "config.reference_unresolved",
    "config",
    "A reference in the config cannot be resolved on this worker",
    "Set the variable or the file on every worker, and allow it in the worker's properties.",
)

ENV_PATTERN_KEY: Final = "config.providers.env.param.allowlist.pattern"
FILE_PATHS_KEY: Final = "config.providers.file.param.allowed.paths"
DIR_PATHS_KEY: Final = "config.providers.dir.param.allowed.paths"
ENV_PATTERN: Final = r"CDC_SECRET_\w+|(?!CDC_|CONNECT_|HADOOP_)\w*PASSWORD"
"""The environment variables that references may read by default: a connector's author could send any other variable to
a host of his own. Those with the prefixes of worker properties are the worker's own logins, and Hadoop's are of all lakes."""
FILE_PATHS: Final = "/run/secrets,/var/run/secrets/cdcworker,/etc/cdcworker/secrets"
PASSED_ON: Final = "topic.creation."
"""The prefix of keys that are used although no definition has them."""
FILE_BYTES_MAX: Final = 65_536
_FOLDER: Final = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW


def resolve(config: Mapping[str, str], allowed: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns the config with all references resolved, after a check that this worker may use it.

    `allowed` holds the worker's `config.providers.*` and `connector.*` properties, and the converters that connectors have from
    it. CdcError names the key.
    """
    rules = allowed or {}
    config = with_inherited(config, rules)
    resolved = {}
    for key, text in config.items():
        try:
            resolved[key] = _resolved(key, text, rules)
        except CdcError:
            if _is_used(key, config):
                raise
            resolved[key] = text
    shown_by_name = ConfigDef(()).shown
    shown = {key: shown_by_name(key, value) for key, value in resolved.items()}
    plain_values = {value for key, value in resolved.items() if shown[key] == value}
    redaction.remember(value for key, value in resolved.items() if shown[key] != value and value not in plain_values)
    redaction.remember(secret_names.untold(resolved, shown.values()))
    allowed_targets.admit(resolved, rules)
    return resolved


def _is_used(key: str, config: Mapping[str, str]) -> bool:
    """Returns whether the connector reads the key for certain: the login of a schema registry counts once that registry is asked, which
    a connector that keeps its ids never does."""
    try:
        definition: ConfigDef = registry.lookup(config.get("connector.class", "")).load().config_def
    except (CdcError, ImportError, AttributeError):
        return True
    known = definition.of(config).keys.get(key)
    return (known is not None and known.group != REGISTRY_GROUP) or key.startswith(PASSED_ON)


def _resolved(key: str, text: str, rules: Mapping[str, str]) -> str:
    def one(match: re.Match[str]) -> str:
        value = _value(key, match.group(), rules)
        redaction.remember_references({value: match.group()})
        return value

    return REFERENCE.sub(one, text)


def _value(key: str, reference: str, rules: Mapping[str, str]) -> str:
    provider, _, rest = reference[2:-1].partition(":")
    if provider == "env":
        return _from_env(key, rest, rules.get(ENV_PATTERN_KEY, ENV_PATTERN))
    if provider == "file":
        return _from_file(key, rest, rules)
    if provider == "dir":
        return _from_folder(key, rest, rules)
    raise _refused(key, f"there is no config provider {provider[:40]!r}; known are env, file and dir")


def _from_env(key: str, name: str, pattern: str) -> str:
    if not re.fullmatch(pattern, name, re.ASCII):
        raise _refused(key, f"the variable's name is not allowed by {ENV_PATTERN_KEY}")
    value = os.environ.get(name)
    if value is None:
        raise _refused(key, f"the variable {name} is not set")
    return value


def _from_file(key: str, rest: str, rules: Mapping[str, str]) -> str:
    path, _, member = rest.partition(":")
    text = _read(key, path, FILE_PATHS_KEY, rules)
    if not member:
        return text.rstrip("\r\n")
    for line in text.splitlines():
        name, separator, value = line.partition("=")
        if separator and name.strip() == member and not line.lstrip().startswith("#"):
            return value.strip()
    raise _refused(key, "the file has no such key")


def _from_folder(key: str, rest: str, rules: Mapping[str, str]) -> str:
    """Returns the content of one file in a folder, as Kubernetes mounts secrets."""
    folder, _, name = rest.partition(":")
    if not name or "/" in name or name in (".", ".."):
        raise _refused(key, "a reference to a folder needs the name of a file in it: ${dir:/path:name}")
    return _read(key, f"{folder.rstrip('/')}/{name}", DIR_PATHS_KEY, rules).rstrip("\r\n")


def _read(key: str, path: str, roots_key: str, rules: Mapping[str, str]) -> str:
    roots = parse_list(rules.get(roots_key, FILE_PATHS))
    # What lies outside is not looked for: the answer must not tell whether it is there.
    if not allowed_targets.is_inside(path, roots):
        raise _refused(key, f"the path is not absolute, or outside of {roots_key}")
    try:
        # The path is judged after its links are followed, and the very file that was judged is read.
        real = os.path.realpath(path, strict=True)
        if not allowed_targets.is_inside(real, [os.path.realpath(root) for root in roots]):
            raise _refused(key, f"the path is not absolute, or outside of {roots_key}")
        descriptor = _open_without_links(real)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise _refused(key, "the reference names something else than a file")
            return file.read(FILE_BYTES_MAX).decode()
    except UnicodeDecodeError:
        raise _refused(key, "the file is not UTF-8 text") from None
    except (OSError, ValueError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "not a path"
        raise _refused(key, f"the file cannot be read: {reason}") from None


def _open_without_links(real: str) -> int:
    """Opens a path folder by folder without following links, so that none can be exchanged after the check."""
    *folders, name = real.strip("/").split("/")
    at = os.open("/", _FOLDER)
    try:
        for folder in folders:
            below = os.open(folder, _FOLDER, dir_fd=at)
            os.close(at)
            at = below
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=at)
    finally:
        os.close(at)


def _refused(key: str, message: str) -> CdcError:
    return CdcError(UNRESOLVED, message, where={"key": key})
