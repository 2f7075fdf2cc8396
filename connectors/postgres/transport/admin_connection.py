"""The connection for statements beside the stream."""

from __future__ import annotations

from typing import Any

import psycopg

AdminConnection = psycopg.Connection[tuple[Any, ...]]
"""A psycopg connection whose rows are tuples."""
