"""What is said of values that are refused: sentences, those of Kafka Connect in its own words."""

from __future__ import annotations

from cdcworker.connectors.config import secret_names

SHOWN_CHARS_MAX = 100
"""Characters of a value in the sentence that refuses it."""


class Sentence(str):
    """A problem that is a whole sentence, in Kafka Connect's words. Any other goes on a sentence that begins with the key."""

    __slots__ = ()


class Refusal(str):
    """What Kafka Connect says behind `Invalid value … for configuration …:`."""

    __slots__ = ()

    def sentence(self, name: str, shown: str | None) -> Sentence:
        """Returns the whole; `shown`: the value as it may be shown, None where it may not."""
        value = "" if shown is None else f" {shown[:SHOWN_CHARS_MAX]}"
        return Sentence(f"Invalid value{value} for configuration {name}: {self}")


class Unreadable(Refusal):
    """The value is not of the key's type: as in Kafka Connect no value is shown for the key."""

    __slots__ = ()


def missing(name: str) -> Sentence:
    """Returns what Kafka Connect says of a key without a value that has to have one."""
    return Sentence(f'Missing required configuration "{secret_names.name(name)}" which has no default value.')
