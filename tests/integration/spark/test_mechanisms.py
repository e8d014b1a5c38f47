"""Executors log in by SCRAM and with tokens, which they renew: their client is Java's, not the control consumer's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_kcr.embedded.processes import happened
from airflow_kcr.errors import BatchFailed
from airflow_kcr.kafka.settings import spark_options
from airflow_kcr.protocol.values import MemberId, RegionId
from airflow_kcr.spark.engine import SparkEngine
from airflow_kcr.spark.reads import Source
from tests.integration.spark.batches import GROUP, REGION, Collected, call
from tests.support.kafka import WITHIN
from tests.support.tokens import MECHANISMS, SCRAM, SECRET, guarded_broker, login, token_endpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

USER, PASSWORD, WRONG = "flights", 'pass"wo\\rd-1', "not-the-pass-word"
REASONS = {"SCRAM-SHA-512": "invalid credentials with SASL mechanism SCRAM-SHA-512", "OAUTHBEARER": "invalid_client"}


@pytest.mark.long
def test_executors_log_in_renew_their_tokens_and_say_why_they_are_not_let_in(
    spark: SparkSession, tmp_path: Path
) -> None:
    with token_endpoint(lifetime=20.0) as tokens, guarded_broker(tmp_path, tokens, {USER: PASSWORD}) as kafka:
        topic = kafka.topic(1)
        kafka.fill(topic, {0: 30})

        def read(mechanism: str, begin: int, secret: str) -> list[int]:
            client = spark_options(login(kafka, tokens, mechanism, USER, secret))
            options = {name.removeprefix("kafka."): value for name, value in client.items()}
            collected = Collected()
            source = Source(
                region=REGION, region_id=RegionId("1"), member=MemberId(GROUP, 0), kafka=options, options={}
            )
            SparkEngine(spark, collected, source).run(call(topic, {0: (begin, begin + 10)}))
            return collected.offsets()

        for mechanism in MECHANISMS:
            right = PASSWORD if mechanism in SCRAM else SECRET
            assert read(mechanism, 0, right) == list(range(10))
        # The executor's consumer goes on with the connection that the first token has opened.
        for begin in (10, 20):
            renewed = len(tokens.asked)
            assert happened(lambda: len(tokens.asked) > renewed, within=WITHIN)  # noqa: B023 - called here
            assert read("OAUTHBEARER", begin, SECRET) == list(range(begin, begin + 10))
        for mechanism, reason in REASONS.items():
            with pytest.raises(BatchFailed, match=reason) as refused:
                read(mechanism, 0, WRONG)
            assert WRONG not in str(refused.value)
