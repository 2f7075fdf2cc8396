"""The properties that packages below the worker's configuration declare by themselves."""

from __future__ import annotations

from typing import Final

from cdcworker.worker.identity.properties import ACCESS_KEYS
from cdcworker.worker.quotas.properties import QUOTA_KEYS

GATHERED_KEYS: Final = (*ACCESS_KEYS, *QUOTA_KEYS)
