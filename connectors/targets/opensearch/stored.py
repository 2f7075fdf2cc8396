"""Fields of documents that stay as they are stored: of values that the source did not send, and of partial rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from cdcworker.connectors.api.record_target import TargetUnavailable
from cdcworker.connectors.record_sink.errors import TARGET_REFUSES, TARGET_UNAVAILABLE
from cdcworker.connectors.targets.opensearch import raw_json
from cdcworker.connectors.targets.opensearch.bulk import Write
from cdcworker.connectors.targets.opensearch.client import SearchClient
from cdcworker.connectors.targets.opensearch.errors import kind_of
from cdcworker.schemas.errors import CdcError

_UNREADABLE: Final = frozenset(("illegal_argument_exception", "index_closed_exception", "security_exception"))
"""What does not end by itself, as an alias of several indexes, in none of which the server looks."""


def complete(client: SearchClient, writes: Sequence[Write]) -> None:
    """Gives writes the fields that they keep, as the server has them now: it is asked in real time, and not by a search.

    Raises CdcError where the server does not say whether there is a document. No other write comes between for which that matters: an older one is refused, since the document has this one's fields of older
    changes already, and a newer one takes the place of this one.
    """
    wanted = [write for write in writes if write.needs_stored]
    if not wanted:
        return
    body = {"docs": [{"_index": write.index, "_id": write.id} for write in wanted]}
    reply = client.ask("POST", "/_mget", body)
    try:
        found = [raw_json.members(text) for text in raw_json.items(raw_json.members(reply.body.decode())["docs"])]
        for write, document in zip(wanted, found, strict=True):
            if "error" in document:
                raise _unread(document["error"], write.index)
            if document["found"] == "true":
                fill(write, raw_json.members(document["_source"]))
    except (ValueError, KeyError):
        raise TargetUnavailable(TARGET_UNAVAILABLE, "the server's answer does not tell of each document") from None


def _unread(text: str, index: str) -> CdcError:
    """Returns the error of a document that the server did not look for: it may be there, and have what the write is to keep."""
    error = json.loads(text)
    kind = kind_of(error) if isinstance(error, dict) else "unknown"
    said = f"the server does not read the document whose fields are to stay as they are ({kind})"
    if kind in _UNREADABLE:
        return CdcError(TARGET_REFUSES, said, where={"index": index})
    return TargetUnavailable(TARGET_UNAVAILABLE, said, where={"index": index})


def fill(write: Write, stored: dict[str, str]) -> None:
    """Gives a write the fields that it keeps of an earlier state of its document."""
    own = write.pieces or {}
    kept = {
        name: text for name, text in stored.items() if name in write.kept or (write.keeps_others and name not in own)
    }
    write.pieces = {**own, **kept}
