"""Connection strings of MySQL and MariaDB."""

from __future__ import annotations

import pytest
from cdcworker.connectors.mysql.config.connection_string import config_of
from cdcworker.connectors.mysql.config.settings import parse
from cdcworker.connectors.registry.names import of_connection_string
from cdcworker.schemas.errors import CdcError


def test_a_string_covers_its_database():
    config = config_of("mariadb://cd%40c:p%2Fw@db.example:3307/shop-1?ssl-mode=VERIFY_CA&ssl-ca=/ca.pem")
    assert config == {
        "connector.class": "mariadb",
        "topic.prefix": "doctor",
        "database.hostname": "db.example",
        "database.port": "3307",
        "database.user": "cd@c",
        "database.password": "p/w",
        "database.server.id": "4294967295",
        "database.include.list": "shop\\-1",
        "database.ssl.mode": "verify_ca",
        "database.sslrootcert": "/ca.pem",
    }
    settings = parse(config)
    assert settings.login.sslmode == "verify-ca"
    assert settings.filters.table("shop-1", "t")
    assert not settings.filters.table("shop-11", "t")


def test_a_name_with_a_comma_is_one_name():
    table = parse(config_of("mysql://root@localhost/a%2Cb")).filters.table
    assert [table(name, "t") for name in ("a,b", "a", "b", "axb")] == [True, False, False, False]


def test_without_a_database_every_one_is_meant():
    config = config_of("mysql://root@localhost")
    assert parse(config).filters.table("any", "t")
    assert (config["database.port"], config["connector.class"]) == ("3306", "mysql")
    assert of_connection_string("mysql://root@localhost").name == "mysql"
    assert of_connection_string("mariadb://root@localhost").name == "mariadb"


@pytest.mark.parametrize(
    "text",
    ["mysql://cdc:hunter2@h:x/", "http://cdc:hunter2@h/", "mysql://cdc:hunter2@h/?allow=1", "mysql://cdc:hunter2@h/?ssl-mode", "mysql://cdc:hunter2@h/d#f"],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_without_its_text(text):
    with pytest.raises(CdcError) as caught:
        config_of(text)
    assert caught.value.code == "config.invalid"
    assert "hunter2" not in str(caught.value.to_dict())
