"""Which of Spark's settings, options and texts it shows to nobody: in its logs, its pages, and what SET and EXPLAIN answer."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from cdcworker.connectors.config import secret_names

_KEY: Final = (
    r"(?<!primary)(?<!primary[._-])(?<!foreign)(?<!foreign[._-])(?<!mon)key(?!words?\b|space)(?!(?<![a-z]key)value)"
)
_AUTH: Final = r"auth(?!or(?!i[sz]ation)|enticate(?![a-z]))"
NAMES: Final = rf"(?i){secret_names.WORDS}|jaas|{_KEY}|{_AUTH}|signature|sas[-._]?token|connection[-._]?string|cookie|session[-._]?id|truststore[-._]?certificates"
"""Of settings and options, in Java's form and Python's; Kafka's, JDBC's, S3's, Azure's and Google's among them. Spark looks
for it in values too."""
_NAMED: Final = (
    rf"(?:{secret_names.WORDS})[\w.-]{{0,40}}+(?:\s{{0,9}}(?:=>?|->|:)|\\{{0,7}}[\"']\s{{0,9}}[:=])\s{{0,9}}"
)
_VALUE: Final = (
    r"(?:\"[^\"\\]*+(?:(?:\\.|\"\")[^\"\\]*+)*+\"?|'[^'\\]*+(?:(?:\\.|'')[^'\\]*+)*+'?"
    r"|(\\{1,7}[\"'])(?:(?!(?<!\\)\1).)*+(?:\1)?|(?:\\.|[^\s&;,\"'}\\])++)"
)
_LOGIN: Final = (
    r"(?<=://)[^/?#\s:]*+:(?:(?![0-9]{1,5}[;,][\w.-]{1,60}=)[^/?#\s]+"
    r"|(?!(?:[0-9]{1,5})?[/?#,;])(?:(?!://)\S){1,500}?)(?=@)"
)
TEXTS: Final = rf"(?is){_NAMED}{_VALUE}|{_LOGIN}"
"""In the plan of a query: settings written out in it, and logins in addresses, as in `secret_names`, in Java's form and Python's.
Java goes through a group that repeats by calling itself, but for a possessive one: a long text must not end its stack."""


def settings(names: Iterable[str] = ()) -> dict[str, str]:
    """`names` are secret whatever they are called."""
    more = [re.escape(name) for name in sorted(names) if not re.search(NAMES, name)]
    return {
        "spark.redaction.regex": "|".join([NAMES, *more]),
        "spark.redaction.string.regex": TEXTS,
        "spark.sql.redaction.string.regex": TEXTS,
        "spark.sql.redaction.options.regex": "(?i)url",
    }
