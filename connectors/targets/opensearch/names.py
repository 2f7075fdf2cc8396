"""Names of indexes and ids of documents: what the server allows, and when two of them would be one."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from cdcworker.connectors.api.record_target import TargetRecord
from cdcworker.connectors.record_sink.errors import RECORD_REFUSED, TARGET_REFUSES
from cdcworker.connectors.targets.templates import TextTemplate, filled_with, has_places
from cdcworker.connectors.transforms.bounded_cache import BoundedCache
from cdcworker.schemas.errors import CdcError

NAME_BYTES_MAX: Final = 255
ID_BYTES_MAX: Final = 512
_FORBIDDEN: Final = re.compile(r'[\\/*?"<>| ,#:%\x00-\x1f\x7f]')
NAMES_MAX: Final = 10_000


def name_problem(name: str) -> str | None:
    """Returns what is wrong with the name of an index."""
    if not name or name in (".", "..") or name[0] in "-_+":
        return "is no name of an index: it is empty, or begins with -, _ or +"
    if len(name.encode("utf-8", "replace")) > NAME_BYTES_MAX:
        return f"is longer than the {NAME_BYTES_MAX} bytes that the name of an index may have"
    found = re.search(r'[\\/*?"<>| ,#:A-Z\x00-\x1f\x7f]', name)
    return "holds characters that the name of an index may not have" if found else None


def names_of(config: Mapping[str, Any]) -> dict[str, str]:
    """Returns the index of each topic that a parsed config names, where its template has the topic's name alone."""
    template, mapped = config["index.name.template"], resources_of(config)
    if has_places(template.replace("${topic}", "")):
        return {topic: mapped[topic] for topic in config["topics"] if topic in mapped}
    return {
        topic: mapped.get(topic) or filled_with(template, topic).lower() for topic in config["topics"]
    }  # fmt: skip


def resources_of(config: Mapping[str, Any]) -> dict[str, str]:
    """Returns the indexes, aliases and data streams that a config names by topic."""
    pairs = (item.rpartition(":") for item in config["topic.to.external.resource.mapping"])
    return {topic.strip(): name.strip() for topic, _, name in pairs}


def twice(names: Mapping[str, str]) -> Sequence[str]:
    """Returns the topics of which some have the same index."""
    found = list(names.values())
    return sorted(topic for topic, name in names.items() if found.count(name) > 1)


class IndexNames:
    """Makes the names of indexes: in small letters, with what they may not hold percent-encoded."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._template = TextTemplate(config["index.name.template"], lambda text: _FORBIDDEN.sub(_encoded, text))
        self._mapped = resources_of(config)
        self._known: BoundedCache[str, str] = BoundedCache(NAMES_MAX)

    def of(self, record: TargetRecord) -> str:
        """Returns the index of a record. CdcError of kind `data` for a name that the server does not allow, of kind `config` where two
        names differ by large and small letters alone."""
        mapped = self._mapped.get(record.topic)
        if mapped is not None:
            return mapped
        text = self._template.fill(record)
        name = text.lower()
        known = self._known.get(name)
        if known is None:
            if problem := name_problem(name):
                raise CdcError(RECORD_REFUSED, f"what index.name.template makes of the record {problem}")
            self._known[name] = text
        elif known != text:
            text = (
                "two names that differ by large and small letters alone would be one index: change index.name.template"
            )
            raise CdcError(TARGET_REFUSES, text)
        return name


def _encoded(found: re.Match[str]) -> str:
    return f"%{ord(found[0]):02x}"


class DocumentIds:
    """Makes ids of documents from keys."""

    def __init__(self, template: str) -> None:
        self._single = TextTemplate(template, str)
        self._several = TextTemplate(template, lambda text: text.replace("%", "%25"), ":")

    def of(self, record: TargetRecord) -> str:
        """Returns the id. CdcError of kind `data` for a record without a key."""
        key = record.key
        if key is None:
            raise CdcError(RECORD_REFUSED, "the record has no key, which names its document: set key.ignore=true")
        is_composite = isinstance(key, Mapping) and len(key) > 1
        text = (self._several if is_composite else self._single).fill(record)
        if not text:
            raise CdcError(RECORD_REFUSED, "the key is an empty text, which names no document")
        return shortened(text)


def shortened(text: str) -> str:
    """Returns an id, or a hash of one that is too long. CdcError of kind `data` for text that is not Unicode."""
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise CdcError(RECORD_REFUSED, "the key is not Unicode") from None
    return text if len(data) <= ID_BYTES_MAX else f"sha256-{hashlib.sha256(data).hexdigest()}"


def path_of(name: str) -> str:
    """Returns a name as a part of a path."""
    return quote(name, safe="")
