"""The error codes under which a connector raises what the shared capture code finds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CaptureErrors:
    """Declared codes of one connector, so that its users meet its own names and hints."""

    message_key: str
    """`message.key.columns` names a column that the table does not have, or that a deletion would not hold."""
    mask_unfit: str
    """A `column.*` rule cannot be applied to a column that it chooses."""
    schema_changed: str
    """A table has changed, and `schema.change.policy` is `halt`."""
    schema_paused: str
    """A table has changed, and `schema.change.policy` is `pause-table`."""
    snapshot_refused: str
    """A requested snapshot cannot be taken."""
    spool: str
    """The spool of open transactions cannot be read back."""
