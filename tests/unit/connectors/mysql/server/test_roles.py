"""The script of a source's user: names are quoted, and it holds no password."""

from __future__ import annotations

from cdcworker.connectors.mysql.server.roles import SourceUser, source_script
from cdcworker.connectors.sql_script import as_text


def script(**more: object) -> list[str]:
    steps = source_script(SourceUser("o'reader", [("shop", "a`b"), ("shop", "t")], **more))
    return [statement for step in steps for statement in step.statements]


def test_the_user_gets_what_a_source_needs_and_no_more():
    assert script() == [
        "CREATE USER IF NOT EXISTS 'o''reader'@'%' ACCOUNT LOCK",
        "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO 'o''reader'@'%'",
        "GRANT SELECT ON `shop`.`a``b` TO 'o''reader'@'%'",
        "GRANT SELECT ON `shop`.`t` TO 'o''reader'@'%'",
    ]
    assert script(host="10.0.0.%", replicas=True)[1] == (
        "GRANT REPLICATION SLAVE, REPLICATION CLIENT, REPLICA MONITOR ON *.* TO 'o''reader'@'10.0.0.%'"
    )


def test_the_text_is_for_mysqls_own_client():
    text = as_text("title", source_script(SourceUser("cdc", [("shop", "t")])))
    assert text.startswith("-- title\n\n-- ")
    assert "\\set" not in text
