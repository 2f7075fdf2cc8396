"""Which variables of its environment a process hands to those that it starts: a list of names, since whatever else is
there may be a secret of somebody's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Final

MORE: Final = "CDC_TASK_ENVIRONMENT"
"""The variable that tells a worker's processes what the operator lets them hand on: `task.environment`, as a list."""
MACHINE: Final = (
    *("PATH", "HOME", "USER", "LOGNAME", "HOSTNAME", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR", "TERM", "NO_COLOR"),
    *("LD_*", "MALLOC_*", "PYTHON*", "VIRTUAL_ENV", "SSL_CERT_FILE", "SSL_CERT_DIR", "KRB5*"),
    *("JAVA_HOME", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "HADOOP_*", "YARN_*", "SPARK_*", "KUBERNETES_*"),
    *("CDC_CACHE_DIR", "CDC_TASK_MARK", MORE),
)
"""What says where things are on a machine. Java gets this, and what `task.environment` names."""
_SECRETS: Final = ("*PASSWORD", "*PASSWD", "*SECRET", "*TOKEN", "*CREDENTIAL", "*CREDENTIALS", "*_KEY")
"""Endings of names that say no place, such as `HADOOP_CREDSTORE_PASSWORD`: only a name of its own hands one on."""


def chosen(environment: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """Returns the variables with these names; one that ends in * stands for all that begin so."""
    patterns = tuple(names)
    return {name: value for name, value in environment.items() if any(fnmatchcase(name, one) for one in patterns)}


def without_secrets(environment: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """Returns the variables with these names, but for those whose names say that they are secrets."""
    found = chosen(environment, names)
    return {name: value for name, value in found.items() if not any(fnmatchcase(name.upper(), one) for one in _SECRETS)}


def of_java(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns what a Java process gets: no reference is resolved there."""
    more = (name.strip() for name in environment.get(MORE, "").split(","))
    return {**without_secrets(environment, MACHINE), **chosen(environment, filter(None, more))}
