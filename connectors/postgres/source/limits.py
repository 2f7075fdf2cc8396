"""What only a PostgreSQL task waits for, and reads at a time, beside the limits of every source."""

from __future__ import annotations

NATIVE_BYTES_MAX = 512 * 1024
"""A batch of whole transactions that the native core has read is handed on at this size: the broker takes it while the
next is read."""
PUSH_S = 0.3
"""After this a waiting chunk moves an idle log on with a logical message."""
