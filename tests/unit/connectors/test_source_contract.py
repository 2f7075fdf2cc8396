"""The contract of sources over those that need no server: generated rows, lines of a file."""

from __future__ import annotations

from typing import ClassVar

import pytest

from tests.contract.sources import SourceContract, SourceUnderTest


class DatagenUnderTest(SourceUnderTest):
    config: ClassVar = {
        "connector.class": "datagen",
        "topic.prefix": "p",
        "tables": "a,b",
        "rows.per.second": "-1",
        "row.bytes": "8",
    }
    unfit: ClassVar = {"rows.per.second": "many"}

    def write(self, count: int) -> None:
        pass


class FileUnderTest(SourceUnderTest):
    unfit: ClassVar = {"topic": "a topic/with what Kafka refuses"}

    def __init__(self, folder) -> None:
        self.path = folder / "lines"
        self.config = {"connector.class": "file", "file": str(self.path), "topic": "lines"}
        self.file_roots = (str(folder),)
        self.written = 0

    def write(self, count: int) -> None:
        with self.path.open("a") as file:
            file.writelines(f"line {self.written + number}\n" for number in range(count))
        self.written += count


class TestDatagen(SourceContract):
    ROWS = 6_000

    @pytest.fixture
    def source(self):
        return DatagenUnderTest()


class TestFile(SourceContract):
    @pytest.fixture
    def source(self, tmp_path):
        return FileUnderTest(tmp_path)
