"""What may go wrong between records and documents, by code, and what items of an answer mean."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Final

from cdcworker.connectors.api.record_target import TargetUnavailable
from cdcworker.connectors.record_sink.errors import RECORD_REFUSED, TARGET_REFUSES, TARGET_UNAVAILABLE
from cdcworker.schemas.errors import CdcError, declare

MAPPING_CONFLICT: Final = declare(
    "sink.mapping_conflict",
    "data",
    "A document does not fit the mapping of its index",
    "Compare the field that is named with the index's mapping: write into a new index, or have the server take such values"
    " (mapping.ignore.malformed=true). With errors.tolerance=all such records are dead letters and the others go on.",
)
_CONFLICTS: Final = frozenset(
    {"mapper_parsing_exception", "document_parsing_exception", "strict_dynamic_mapping_exception"}
)
_HALTS: Final = frozenset(
    {"security_exception", "index_not_found_exception", "index_closed_exception", "invalid_index_name_exception"}
)
_NOT_NOW: Final = frozenset(
    {
        *("cluster_block_exception", "unavailable_shards_exception", "node_closed_exception", "timeout_exception"),
        *("process_cluster_event_timeout_exception", "circuit_breaking_exception", "rejected_execution_exception"),
        *("opensearch_rejected_execution_exception", "es_rejected_execution_exception"),
    }
)
_TYPE: Final = re.compile(r"[a-z_]{1,80}")
_FIELD: Final = re.compile(r"(?:failed to parse(?: field)?|object mapping for|mapper for) \[([^\[\]]{1,255})\]")
_CURRENT: Final = re.compile(r"current version \[([0-9]{1,19})\]")


def kind_of(error: Mapping[str, Any]) -> str:
    """Returns the type of a server's error, which is one of its own words."""
    found = error.get("type")
    return found if isinstance(found, str) and _TYPE.fullmatch(found) else "unknown"


def current_version(error: Mapping[str, Any]) -> int | None:
    """Returns the version that a document has, of a conflict of versions."""
    found = _CURRENT.findall(str(error.get("reason", "")))
    return int(found[-1]) if found else None


def item_error(status: int, error: Mapping[str, Any], fields: Collection[str]) -> CdcError:
    """Returns the error of one item. The server's reason holds values, so only its type is told, and of `fields` the one that it
    names."""
    kind = kind_of(error)
    if status == 429 or status >= 500 or kind in _NOT_NOW:
        return TargetUnavailable(TARGET_UNAVAILABLE, f"the server takes no documents now ({kind})")
    if status in (401, 403) or kind in _HALTS:
        return CdcError(TARGET_REFUSES, f"the server refuses documents of this index ({kind})")
    found = _FIELD.search(str(error.get("reason", "")))
    name = found[1].partition(".")[0] if found else ""
    where = {"field": name} if name in fields else {}
    code = MAPPING_CONFLICT if kind in _CONFLICTS or where else RECORD_REFUSED
    return CdcError(code, f"the server refuses the document ({kind})", where=where)
