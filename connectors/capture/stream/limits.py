"""How much a source task reads at a time, and how long it waits for what."""

from __future__ import annotations

from typing import Final

BATCH_CHANGES_MAX: Final = 5_000
BATCH_BYTES_MAX: Final = 4 * 1024 * 1024
POLL_S_MAX: Final = 0.1
WATERMARK_S: Final = 1.0
NUDGE_S: Final = 0.02
"""How often it is looked whether the stream has come to the boundary of a chunk that waits for it."""
READ_S_MAX: Final = 600.0
"""For one read of the snapshot beyond the usual limit of a poll: large rows, a server under load."""
