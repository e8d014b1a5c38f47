"""What is read of the output of Kafka's own tool."""

from __future__ import annotations

import pytest

from airflow_kcr.embedded.demo.judgement import described_offsets
from airflow_kcr.errors import ServiceFailed

DESCRIBED = """
Consumer group 'flights-etl' has no active members.

GROUP    TOPIC    PARTITION  CURRENT-OFFSET  LOG-END-OFFSET  LAG    CONSUMER-ID     HOST    CLIENT-ID
flights-etl     flights    1    1200    1200    0    -    -    -
flights-etl     flights    0    17    20    3    -    -    -
flights-etl     flights    2    -    0    -    -    -    -
"""


def test_the_columns_are_found_by_their_names_and_a_partition_without_an_offset_is_left_out() -> None:
    assert described_offsets(DESCRIBED) == {("flights", 1): 1200, ("flights", 0): 17}


def test_what_is_no_table_is_shown_as_it_is() -> None:
    with pytest.raises(ServiceFailed, match="Error: group not found"):
        described_offsets("Error: group not found\n")
