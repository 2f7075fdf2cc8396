"""What a task tells its next opening of a row that does not fit text, and when that counts no more."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from cdcworker.connectors.api.context import TaskContext
from cdcworker.connectors.postgres.config.settings import parse
from cdcworker.connectors.postgres.decode.binary_transcoder import BinaryTranscoder
from cdcworker.connectors.postgres.decode.decoder import PgoutputDecoder
from cdcworker.connectors.postgres.oversize_rows import ROW_TOO_LARGE, TURNS_BINARY
from cdcworker.connectors.postgres.source import binary_fallback as turning
from cdcworker.connectors.postgres.source.session import StreamingFallback
from cdcworker.schemas.errors import CdcError

from ..test_rules import CONFIG, POSITION

CATALOG = SimpleNamespace(info=SimpleNamespace(server_version=170000), types=lambda columns: None)


def session(timeline: int, **config: str):
    return SimpleNamespace(
        settings=parse({**CONFIG, **config}),
        catalog=CATALOG,
        decoder=(decoder := PgoutputDecoder(lambda relation: None, {})),
        state=SimpleNamespace(decoder=decoder, streamed=SimpleNamespace(open_xid=700)),
        position=SimpleNamespace(timeline=timeline, safe_lsn=POSITION.safe_lsn),
    )


def noted() -> TaskContext:
    context = TaskContext("c", 0, 1, "i", "")
    told = turning.turned(session(1), context, CdcError(ROW_TOO_LARGE, "too large"))
    assert told.code == TURNS_BINARY
    return context


def test_the_next_stream_is_in_binary_until_the_transaction_has_ended():
    context, one = noted(), session(1)
    assert turning.binary_until(one, context) == StreamingFallback(xid=700, until=0)
    assert isinstance(turning.transcoder(one.settings, context, CATALOG), BinaryTranscoder)
    assert turning.NOTE in context.notes


@pytest.mark.parametrize(("timeline", "columns"), [(2, "auto"), (1, "never")], ids=["after a failover", "not wanted"])
def test_a_note_of_another_timeline_or_one_that_is_not_wanted_is_dropped(timeline, columns):
    # A standby that was promoted may give the same number to a later transaction.
    context, one = noted(), session(timeline, **{turning.KEY: columns})
    assert turning.binary_until(one, context) is None
    assert turning.NOTE not in context.notes


@pytest.mark.parametrize("given", ["auto", "public.t.data"])
def test_whatever_is_not_never_turns(given):
    context = TaskContext("c", 0, 1, "i", "")
    found = turning.turned(session(1, **{turning.KEY: given}), context, CdcError(ROW_TOO_LARGE, "too large"))
    assert found.code == TURNS_BINARY
    never = turning.turned(session(1, **{turning.KEY: "never"}), context, CdcError(ROW_TOO_LARGE, "too large"))
    assert never.code == ROW_TOO_LARGE
