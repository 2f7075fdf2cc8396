"""The file of quotas: labels, and how many connectors and tasks may have one value of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cdcworker.schemas.errors import declare
from cdcworker.worker.http.body import LABEL_KEY
from cdcworker.worker.linux.operator_file import OperatorFile, read_yaml

BAD_FILE: Final = declare(
    "quota.file_invalid",
    "config",
    "The file of quotas cannot be used",
    "Correct the place that the message names. The file belongs to root or to the worker's user, and nobody else has the right to "
    "write it.",
)
FILE_BYTES_MAX: Final = 1 << 20
NUMBER_MAX: Final = 1_000_000
MEMBERS: Final = frozenset({"quotas", "required"})
QUOTA_MEMBERS: Final = frozenset({"label", "connectors", "tasks"})


@dataclass(frozen=True, slots=True)
class Quota:
    """How many connectors and tasks may have one value of a label; None: any number."""

    connectors: int | None = None
    tasks: int | None = None


@dataclass(frozen=True)
class QuotaSettings:
    """All of the file."""

    by_key: Mapping[str, Quota]
    """For each value of a label by itself."""
    by_value: Mapping[tuple[str, str], Quota]
    """For one value of a label, instead of what holds for each."""
    required: tuple[str, ...] = ()
    """Labels without which nobody makes a connector."""

    def quota(self, key: str, value: str) -> Quota | None:
        """Returns what holds for a value of a label; None where nothing does."""
        return self.by_value.get((key, value), self.by_key.get(key))


def parse(content: Any) -> QuotaSettings:
    """Returns the settings of a file's content. ValueError names the place of a mistake."""
    if not isinstance(content, dict) or not isinstance(content.get("quotas"), list):
        raise ValueError("expects `quotas:`, a list")
    _check_members(content, MEMBERS, "the file")
    by_key: dict[str, Quota] = {}
    by_value: dict[tuple[str, str], Quota] = {}
    for number, item in enumerate(content["quotas"]):
        place = f"quotas[{number}]"
        key, value, quota = _quota(item, place)
        known = key in by_key if value is None else (key, value) in by_value
        if known:
            raise ValueError(f"{place}: {item['label']} is there twice")
        if value is None:
            by_key[key] = quota
        else:
            by_value[key, value] = quota
    required = content.get("required") or []
    if not isinstance(required, list) or not all(isinstance(key, str) and LABEL_KEY.fullmatch(key) for key in required):
        raise ValueError("required: expects a list of labels' keys")
    return QuotaSettings(by_key, by_value, tuple(dict.fromkeys(required)))


def _quota(item: Any, place: str) -> tuple[str, str | None, Quota]:
    if not isinstance(item, dict):
        raise ValueError(f"{place}: expects an object")
    _check_members(item, QUOTA_MEMBERS, place)
    key, equals, value = str(item.get("label") or "").partition("=")
    if not LABEL_KEY.fullmatch(key):
        raise ValueError(f"{place}: label is `key`, for each of its values, or `key=value`")
    numbers = {name: item.get(name) for name in ("connectors", "tasks")}
    for name, number in numbers.items():
        fine = number is None or (
            isinstance(number, int) and not isinstance(number, bool) and 0 <= number <= NUMBER_MAX
        )
        if not fine:
            raise ValueError(f"{place}: {name} is a number from 0 to {NUMBER_MAX}")
    if all(number is None for number in numbers.values()):
        raise ValueError(f"{place}: names neither connectors nor tasks")
    return key, value if equals else None, Quota(**numbers)


def _check_members(item: Mapping[Any, Any], known: frozenset[str], place: str) -> None:
    unknown = sorted(map(str, set(item) - known))
    if unknown:
        raise ValueError(f"{place}: there is no {unknown[0]}; there are {', '.join(sorted(known))}")


def read(path: Path) -> QuotaSettings:
    """Reads the file. CdcError `quota.file_invalid` when it cannot be used, or others may write it."""
    return read_yaml(path, parse, BAD_FILE, FILE_BYTES_MAX)


class QuotaFile(OperatorFile[QuotaSettings]):
    """The file of quotas."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(path, read, "quotas", clock)
