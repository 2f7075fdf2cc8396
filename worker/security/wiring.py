"""From the worker's properties to what the REST server needs: who may ask, and for what."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cdcworker.worker.security import keys
from cdcworker.worker.security.authenticate import Authenticator
from cdcworker.worker.security.gate import Gate
from cdcworker.worker.security.users import UserFile


def gate_of(values: Mapping[str, Any]) -> Gate:
    """CdcError `auth.file_invalid` when the file of users cannot be used: a worker does not start open by mistake."""
    path = values[keys.AUTH_FILE]
    authenticator = Authenticator(UserFile(Path(path))) if path else None
    return Gate(authenticator, health_is_open=values[keys.HEALTH_OPEN])
