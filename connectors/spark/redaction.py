"""Which of Spark's settings, options and texts it shows to nobody: in its logs, its pages, and what SET and EXPLAIN answer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from cdcworker.connectors import veil
from cdcworker.connectors.config import Secret

NAMES: Final = f"(?i){veil.WORDS}|jaas|key|auth|signature|sas[-._]?token|connection[-._]?string|cookie|session[-._]?id"
"""Of settings and options, in Java's form and Python's; Kafka's, JDBC's, S3's, Azure's and Google's among them."""
TEXTS: Final = rf"(?i)(?:{veil.WORDS})[\w.-]*\s*[=:]\s*[^\s,;&\]}})]+|(?<=://)[^/?#\s:@]+:[^@\s/]+(?=@)"
"""In the plan of a query: settings written out in it, and logins in addresses."""


def settings(names: Iterable[str] = ()) -> dict[str, str]:
    """`names` are secret whatever they are called."""
    more = [re.escape(name) for name in sorted(names) if not re.search(NAMES, name)]
    return {
        "spark.redaction.regex": "|".join([NAMES, *more]),
        "spark.redaction.string.regex": TEXTS,
        "spark.sql.redaction.string.regex": TEXTS,
        "spark.sql.redaction.options.regex": "(?i)url",
    }


def named(secret: Any) -> list[str]:
    """Names in `name=value,…`; a config that was parsed has it as a Secret."""
    text = secret.reveal() if isinstance(secret, Secret) else str(secret or "")
    return [name.strip() for pair in text.split(",") for name, _, _ in [pair.partition("=")] if name.strip()]


def of_catalog(config: Mapping[str, Any]) -> dict[str, str]:
    """Besides the usual ones; empty where those cover what the config calls secret."""
    found = settings(named(config.get("warehouse.catalog.secrets")))
    return {} if found == settings() else found
