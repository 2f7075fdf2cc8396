"""Plugins of other installed distributions: which of them this process may load, and what they declare.

Only distributions that the operator names are looked at. Nothing is found by a name from a connector's config.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import Distribution, EntryPoint, PackageNotFoundError, distribution
from typing import Any, Final

from cdcworker.schemas.errors import CdcError, declare, raised_at

REFUSED: Final = declare(
    "plugin.refused",
    "environment",
    "A plugin that plugins.allowed names cannot be used on this worker",
    "Install the distribution in the worker's environment, or correct it; then restart the worker. All else runs without it.",
)

API_VERSIONS: Final = frozenset({1})
"""The versions of the interface for which plugins may be written."""
ALLOWED: Final = "plugins.allowed"
"""The worker property that names distributions."""
VARIABLE: Final = "CDC_PLUGINS_ALLOWED"
"""The variable by which the worker hands the property on to its children. As for any property it may also come from it."""
CONNECTORS: Final = "cdcworker.connectors"
TRANSFORMS: Final = "cdcworker.connectors.transforms"
CONVERTERS: Final = "cdcworker.connectors.converters"
_GROUPS: Final = (CONNECTORS, TRANSFORMS, CONVERTERS)
_NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,62}")
_DISTRIBUTION: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,98}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class InstalledPlugin:
    """An entry point of an allowed distribution. Nothing of it is imported yet."""

    name: str
    group: str
    distribution: str
    version: str
    entry: EntryPoint

    def load(self) -> Any:
        """Imports what the entry point names. CdcError `plugin.refused`, whatever the import does."""
        try:
            return self.entry.load()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise CdcError(REFUSED, f"its import fails with {type(error).__name__}{_told(error)}") from error

    def refused(self, error: Exception) -> RefusedPlugin:
        """Returns it as one that cannot be used. Of an error that nobody foresaw the text is not told: it may hold a value."""
        if not isinstance(error, CdcError):
            error = CdcError(REFUSED, f"what it declares fails with {type(error).__name__} at {raised_at(error)}")
        return RefusedPlugin(self.name, self.group, self.distribution, self.version, error)


@dataclass(frozen=True, slots=True)
class RefusedPlugin:
    """A plugin that the operator allows and that cannot be used. Without a name it is the whole distribution."""

    name: str
    group: str
    distribution: str
    version: str
    error: CdcError


@dataclass(frozen=True, slots=True)
class InstalledPlugins:
    """What the allowed distributions declare."""

    found: Sequence[InstalledPlugin] = ()
    refused: Sequence[RefusedPlugin] = ()

    def of(self, group: str) -> Sequence[InstalledPlugin]:
        return [plugin for plugin in self.found if plugin.group == group]


def require_version(api: object) -> None:
    """CdcError `plugin.refused` for a plugin that was written for a version of the interface that this worker does not have."""
    if not isinstance(api, int) or api not in API_VERSIONS:
        known = ", ".join(map(str, sorted(API_VERSIONS)))
        raise CdcError(REFUSED, f"it was written for version {api} of the interface; this worker has {known}")


def normal_name(name: str) -> str:
    """Returns a distribution's name in the one form in which names are compared."""
    return re.sub(r"[-_.]+", "-", name).lower()


def problem_of_names(names: Sequence[str]) -> str | None:
    """Returns what is wrong with the value of the worker property."""
    if all(_DISTRIBUTION.fullmatch(name) for name in names):
        return None
    return "expects names of installed distributions, as pip lists them, without versions"


@cache
def installed() -> InstalledPlugins:
    """Returns what this process may load: looked up once, since an environment that changes needs a new worker."""
    return plugins_of([name for name in os.environ.get(VARIABLE, "").split(",") if name.strip()])


def plugins_of(names: Sequence[str]) -> InstalledPlugins:
    """Returns the plugins of these distributions, by name. Of two with one name in a group the second is refused."""
    found: dict[tuple[str, str], InstalledPlugin] = {}
    refused: list[RefusedPlugin] = []
    for name in dict.fromkeys(normal_name(name.strip()) for name in names):
        try:
            entries = list(_entries(name, distribution(name)))
        except (PackageNotFoundError, ValueError):
            refused.append(RefusedPlugin("", "", name, "", CdcError(REFUSED, f"{name} is not installed")))
            continue
        except Exception as error:  # noqa: BLE001 - whoever made the distribution wrote what is parsed
            text = f"the entry points of {name} cannot be read: {type(error).__name__}"
            refused.append(RefusedPlugin("", "", name, "", CdcError(REFUSED, text)))
            continue
        if not entries:
            text = f"{name} declares no plugin: it has no entry point in {', '.join(_GROUPS)}"
            refused.append(RefusedPlugin("", "", name, "", CdcError(REFUSED, text)))
        for plugin in entries:
            problem = _problem(plugin, found)
            if problem:
                refused.append(plugin.refused(CdcError(REFUSED, problem)))
            else:
                found[plugin.group, plugin.name] = plugin
    return InstalledPlugins(tuple(found.values()), tuple(refused))


def _entries(name: str, found: Distribution) -> Iterator[InstalledPlugin]:
    for entry in found.entry_points:
        if entry.group in _GROUPS:
            yield InstalledPlugin(entry.name, entry.group, name, found.version or "", entry)


def _problem(plugin: InstalledPlugin, found: Mapping[tuple[str, str], InstalledPlugin]) -> str:
    if not _NAME.fullmatch(plugin.name):
        return "the name of its entry point has to be of small letters, digits and hyphens, and begin with a letter"
    other = found.get((plugin.group, plugin.name))
    return f"{other.distribution} has a plugin of this name" if other else ""


def _told(error: BaseException) -> str:
    """Returns what may be told of an import's error: names of modules and files, and of others only the place, since their
    texts may hold values."""
    if isinstance(error, ImportError | SyntaxError | AttributeError | NameError):
        return ": " + (str(error).splitlines() or [""])[0][:200]
    return f" at {raised_at(error)}"
