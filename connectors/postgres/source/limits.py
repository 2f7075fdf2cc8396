"""How much a source task reads at a time, and how long it waits for what."""

from __future__ import annotations

BATCH_CHANGES_MAX = 5_000
BATCH_BYTES_MAX = 4 * 1024 * 1024
NATIVE_BYTES_MAX = 512 * 1024
"""A batch of whole transactions that the native core has read is handed on at this size: the broker takes it while the
next is read."""
POLL_S_MAX = 0.1
WATERMARK_S = 1.0
NUDGE_S = 0.02
"""How often a waiting chunk asks the server how far it has come."""
PUSH_S = 0.3
"""After this a waiting chunk moves an idle log on with a logical message."""
READ_S_MAX = 600.0
"""For one read of the snapshot beyond the usual limit of a poll: large rows, a server under load."""
