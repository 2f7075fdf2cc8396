"""Which tables are given which replica identity."""

from __future__ import annotations

import pytest
from cdcworker.connectors.postgres.config.replica_identity_key import KEY, ReplicaIdentities
from cdcworker.connectors.postgres.config.settings import CONFIG_DEF
from cdcworker.connectors.postgres.doctor.replica_identity import IdentityDifference

from ..test_rules import CONFIG


def test_the_first_pattern_that_matches_the_whole_name_counts():
    wanted = ReplicaIdentities.parse(r"public\.a.*:full, public.b:INDEX b_key,.*:Default")
    found = [wanted.of("public", table) for table in ("a", "Aa", "b", "bb")]
    assert found == ["FULL", "FULL", "INDEX b_key", "DEFAULT"]
    assert ReplicaIdentities.parse("public.a:FULL").of("public", "ab") is None
    assert ReplicaIdentities.parse(" ").items == ()


@pytest.mark.parametrize("text", ["public.a", "public.a:SOME", "public.a:INDEX", "(:FULL", ":FULL", "a:FULL;b:FULL"])
def test_another_form_is_refused(text):
    config = {**CONFIG, KEY: text}
    assert [value.name for value in CONFIG_DEF.validate(config) if value.errors] == [KEY]


def test_names_are_quoted():
    item = IdentityDifference(1, "pub", 'o"dd', "DEFAULT", "INDEX o_Key")
    assert item.statement == 'ALTER TABLE "pub"."o""dd" REPLICA IDENTITY USING INDEX "o_Key"'
    assert (
        IdentityDifference(1, "pub", "t", "FULL", "NOTHING").statement
        == 'ALTER TABLE "pub"."t" REPLICA IDENTITY NOTHING'
    )
