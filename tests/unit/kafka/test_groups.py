"""What is said of a group that is not empty."""

from __future__ import annotations

from typing import cast

import pytest

from airflow_kcr.errors import GroupNotEmpty
from airflow_kcr.kafka.admin_process import AdminProcess
from airflow_kcr.kafka.groups import Groups
from airflow_kcr.protocol.observations import GroupSeen, MemberSeen
from airflow_kcr.protocol.values import GroupId


def test_of_many_members_a_few_are_named_and_the_others_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    members = tuple(MemberSeen(member_id=f"m{n}", client_id=f"c{n}", host=f"/h{n}") for n in range(6))
    seen = GroupSeen(group=GroupId("g"), state="stable", members=members)
    monkeypatch.setattr(Groups, "describe", lambda *_: seen)
    with pytest.raises(GroupNotEmpty, match=r"with 6 member\(s\): c0 on h0; .*; c4 on h4; and 1 more; stop them"):
        Groups(cast("AdminProcess", None)).require_empty(GroupId("g"))
