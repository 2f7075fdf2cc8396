"""Where the parts of the demo are, and the config of its sink; that of its source is the shop's."""

from __future__ import annotations

from dataclasses import dataclass

from cdcworker.worker.quickstart.roles import address_of
from cdcworker.worker.quickstart.shop import Shop, data_topics

SINK = "shop-warehouse"


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The addresses of all parts."""

    workers: tuple[str, ...]
    kafka: str
    shop: Shop
    warehouse: str

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics of the shop's tables."""
        return data_topics(self.shop.schema)


def sink_config(schema: str, dsn: str, password: str) -> dict[str, str]:
    """Returns the sink's config. `password` is the password or a reference to it."""
    return {
        "connector.class": "spark",
        "tasks.max": "1",
        "topics": ",".join(data_topics(schema)),
        "warehouse": "postgres",
        **address_of("warehouse", dsn, password),
    }
