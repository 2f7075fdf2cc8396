"""Config references, `${env:NAME}` and `${file:/path:key}`, resolved late and only within what the operator allows."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cdcworker.connectors.config import REFERENCE
from cdcworker.schemas.errors import CdcError, declare

UNRESOLVED: Final = declare(
    "config.reference_unresolved",
    "config",
    "A reference in the config cannot be resolved on this worker",
    "Set the variable or the file on every worker, and allow it in the worker's properties.",
)

ENV_PATTERN_KEY: Final = "config.providers.env.param.allowlist.pattern"
FILE_PATHS_KEY: Final = "config.providers.file.param.allowed.paths"
ENV_PATTERN: Final = r"CDC_SECRET_\w+|\w*PASSWORD"
"""Whoever may create a connector could send any variable to a host of his own: only names meant for it are read."""
FILE_PATHS: Final = "/run/secrets,/var/run/secrets/cdcworker,/etc/cdcworker/secrets"
FILE_BYTES_MAX: Final = 65_536


def resolve(config: Mapping[str, str], allowed: Mapping[str, str] | None = None) -> dict[str, str]:
    """The config with every reference replaced. `allowed` holds the worker's `config.providers.*` properties."""
    rules = allowed or {}
    return {key: _resolved(key, text, rules) for key, text in config.items()}


def _resolved(key: str, text: str, rules: Mapping[str, str]) -> str:
    return REFERENCE.sub(lambda found: _value(key, found.group(), rules), text)


def _value(key: str, reference: str, rules: Mapping[str, str]) -> str:
    provider, _, rest = reference[2:-1].partition(":")
    if provider == "env":
        return _from_env(key, rest, rules.get(ENV_PATTERN_KEY, ENV_PATTERN))
    if provider == "file":
        return _from_file(key, rest, rules.get(FILE_PATHS_KEY, FILE_PATHS))
    raise _refused(key, f"there is no config provider {provider!r}; known are env and file")


def _from_env(key: str, name: str, pattern: str) -> str:
    if not re.fullmatch(pattern, name, re.ASCII):
        raise _refused(key, f"the variable's name is not allowed by {ENV_PATTERN_KEY}")
    value = os.environ.get(name)
    if value is None:
        raise _refused(key, f"the variable {name} is not set")
    return value


def _from_file(key: str, rest: str, roots: str) -> str:
    path, _, member = rest.partition(":")
    text = _read(key, path, roots)
    if not member:
        return text.rstrip("\r\n")
    for line in text.splitlines():
        name, separator, value = line.partition("=")
        if separator and name.strip() == member and not line.lstrip().startswith("#"):
            return value.strip()
    raise _refused(key, "the file has no such key")


def _read(key: str, path: str, roots: str) -> str:
    if "\0" in path or not path.startswith("/"):
        raise _refused(key, "a file reference needs an absolute path")
    try:
        # The path is judged after its links are followed, and the very file that was judged is read.
        real = Path(os.path.realpath(path, strict=True))
        if not any(real.is_relative_to(os.path.realpath(root.strip())) for root in roots.split(",") if root.strip()):
            raise _refused(key, f"the file is outside of {FILE_PATHS_KEY}")
        descriptor = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise _refused(key, "the reference names something else than a file")
            return file.read(FILE_BYTES_MAX).decode()
    except OSError as exc:
        raise _refused(key, f"the file cannot be read: {exc.strerror}") from exc
    except UnicodeDecodeError:
        raise _refused(key, "the file is not UTF-8 text") from None


def _refused(key: str, message: str) -> CdcError:
    return CdcError(UNRESOLVED, message, where={"key": key})
