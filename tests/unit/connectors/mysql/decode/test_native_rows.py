"""The native core against the Python decoder and encoder: the same records, byte for byte, and no bytes make it crash."""

from __future__ import annotations

import pytest
from cdcworker.connectors.mysql.decode.decoder import DecoderOptions
from hypothesis import given, settings
from hypothesis import strategies as st

from .row_events import MODES, needs_native, outcome, streams


def check(*stream, **more):
    """Of an event with a row that cannot be read the decoder hands on nothing, and the core what stands before it."""
    found, expected = (outcome(*stream, **more, fast=fast) for fast in (True, False))
    error = expected[1]
    assert found[1] == error
    if error is None:
        assert found == expected


@needs_native
@given(streams(), MODES)
@settings(max_examples=60, deadline=None)
def test_the_core_writes_what_the_decoder_and_the_encoder_write(stream, modes):
    check(*stream, modes)


@needs_native
@pytest.mark.long
@given(streams(), MODES)
@settings(max_examples=5_000, deadline=None)
def test_the_core_writes_what_the_decoder_and_the_encoder_write_of_many_tables(stream, modes):
    check(*stream, modes)


@needs_native
@given(streams(), st.sampled_from(["", "u", "c", "d", "ud"]), st.booleans(), st.booleans())
@settings(max_examples=30, deadline=None)
def test_the_core_leaves_out_what_the_decoder_leaves_out(stream, skipped, same, whole):
    """Among that updates without a change, and rows that are to be read again."""
    check(*stream, {}, options=DecoderOptions(frozenset(skipped), skips_same=same, completes=whole))
