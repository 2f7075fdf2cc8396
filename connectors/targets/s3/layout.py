"""Where a record's file lies: folders by a template, and a name by the first record."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote

from cdcworker.connectors.api.record_target import TargetRecord
from cdcworker.connectors.record_sink.errors import RECORD_REFUSED
from cdcworker.connectors.targets import templates
from cdcworker.connectors.targets.templates import TextTemplate
from cdcworker.connectors.transforms.bounded_cache import BoundedCache
from cdcworker.schemas.errors import CdcError

_TIME: Final = re.compile(r"%([YmdH])")
_PART: Final = re.compile(r"[A-Za-z0-9._=%~-]*")
_HOUR_MS: Final = 3_600_000
HOURS_MAX: Final = 256
PARTITIONS_MAX: Final = 4_096
CHARS_MAX: Final = 700
"""Of a folder: a store takes keys of 1,024 bytes."""
PART_CHARS_MAX: Final = 255
"""Of a folder's part: file systems take no longer names."""


def template_problem(text: str) -> str | None:
    """Returns what is wrong with a template of folders."""
    if problem := templates.problem(text, whole=False):
        return problem
    parts = templates.filled_with(_TIME.sub("0", text), "x").split("/")
    if all(part.strip(".") and not part.startswith(("_", ".")) and _PART.fullmatch(part) for part in parts):
        return None
    return "expects folders with / between them, of letters, digits, . = - and places; none begins with . or _"


class Folders:
    """Fills a template of folders from records."""

    def __init__(self, template: str) -> None:
        self._template = template
        self._has_time = _TIME.search(template) is not None
        rest = template.replace("${topic}", "").replace("${partition}", "")
        self._known: BoundedCache[tuple[str, int, int], str] | None = (
            None if templates.has_places(rest) else BoundedCache(PARTITIONS_MAX)
        )
        """Folders that follow from the partition and the hour alone."""
        self._by_hour: BoundedCache[int, TextTemplate] = BoundedCache(HOURS_MAX)

    def of(self, record: TargetRecord) -> str:
        """Returns the folder of a record, the same whenever it is asked. CdcError of kind `data` for a record that has none."""
        hour = record.timestamp_ms // _HOUR_MS if self._has_time else 0
        if self._known is None:
            return self._filled(record, hour)
        key = record.topic, record.partition, hour
        folder = self._known.get(key)
        if folder is None:
            folder = self._known[key] = self._filled(record, hour)
        return folder

    def _filled(self, record: TargetRecord, hour: int) -> str:
        template = self._by_hour.get(hour)
        if template is None:
            template = self._by_hour[hour] = TextTemplate(self._timed(hour), encoded_part, "_")
        folder = template.fill(record)
        parts = [_shown(part) for part in folder.split("/")]
        if max(map(len, parts)) > PART_CHARS_MAX:
            raise CdcError(RECORD_REFUSED, f"a part of the record's folder has more than {PART_CHARS_MAX} characters")
        folder = "/".join(parts)
        if len(folder) > CHARS_MAX:
            raise CdcError(RECORD_REFUSED, f"the record's folder has more than {CHARS_MAX} characters")
        return folder

    def _timed(self, hour: int) -> str:
        try:
            at = datetime.fromtimestamp(hour * 3_600, UTC)
        except (ValueError, OverflowError, OSError):
            raise CdcError(RECORD_REFUSED, "the record's time is out of range") from None
        return _TIME.sub(lambda found: f"{at:{found[0]}}".zfill(4 if found[1] == "Y" else 2), self._template)


def _shown(part: str) -> str:
    """Returns a part of a folder so that readers do not pass over it, as they do where a value begins with _ or a dot."""
    return f"%{ord(part[0]):02X}{part[1:]}" if part.startswith(("_", ".")) else part


def name_of(record: TargetRecord, run: int, ending: str) -> str:
    """Returns the name of the file that begins with a record. `run` tells files apart that begin with the same one."""
    again = f"+{run}" if run else ""
    return f"{encoded_part(record.topic)}+{record.partition}+{record.offset:010d}{again}{ending}"


def encoded_part(value: str) -> str:
    """Returns a value as a part of a path: not empty, and no step to another folder."""
    text = quote(value, safe="")
    return text if text.strip(".") else text.replace(".", "%2E") or "%00"
