from __future__ import annotations

import json

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from airflow_kcr.hooks.kcr import KcrHook
from airflow_kcr.operators.region import KcrValidateGroupOperator
from airflow_kcr.protocol.values import GroupId
from airflow_kcr.spec import parse
from tests.support.airflow_tasks import FakeTask, task_context
from tests.support.kafka import Kafka


@pytest.fixture
def region(store_connection: str, kafka: Kafka) -> str:
    """A region, stopped, whose topic is there and whose group is empty."""
    topic = kafka.topic(partitions=2)
    spec = parse(
        f"region: flights\nkafka: {{bootstrap.servers: '{kafka.bootstrap_servers}'}}\n"
        f"groups: [{{group_id: {topic}-group, topics: [{topic}], pipeline: 'jobs:process'}}]\n"
    )
    with KcrHook().region("flights") as lent:
        lent.apply(spec)
    return spec.groups[0].group_id


def test_groups_that_are_as_they_should_be_pass(region: str) -> None:
    task = FakeTask()
    made = KcrValidateGroupOperator(task_id="validate", region="flights")
    said = made.execute(task_context(task))
    json.dumps(said)
    assert said["region"] == "flights"
    assert said["warnings"] == []
    assert isinstance(said["ok"], int)
    assert said["ok"] > 0
    assert task.xcoms == {"_link_RegionLink": "/plugin/kcr/regions/flights"}


def test_every_check_that_fails_is_named_and_may_heal(region: str, kafka: Kafka) -> None:
    kafka.delete_topic(region.removesuffix("-group"))
    made = KcrValidateGroupOperator(task_id="validate", region="flights", groups=[region])
    with pytest.raises(AirflowException, match=rf"failed {region}, topics: ") as raised:
        made.execute(task_context())
    assert not isinstance(raised.value, AirflowFailException)


def test_a_group_that_is_not_the_region_s_is_not_retried(region: str) -> None:
    made = KcrValidateGroupOperator(task_id="validate", region="flights", groups=["other"])
    with pytest.raises(AirflowFailException, match="region flights has no group other"):
        made.execute(task_context())


def test_its_fields_are_templates() -> None:
    made = KcrValidateGroupOperator(
        task_id="v", region="{{ params.r }}", groups=["{{ params.g }}"], kcr_conn_id="{{ c }}"
    )
    made.render_template_fields({"params": {"r": "flights", "g": GroupId("g")}, "c": "conn"})  # type: ignore[typeddict-unknown-key]
    assert (made.region, made.groups, made.kcr_conn_id) == ("flights", ["g"], "conn")
