"""Which patterns are refused because the Kafka client or the broker would read them otherwise.

That the accepted ones are read alike is tried on a broker, in `tests/contract/kafka/test_patterns.py`.
"""

from __future__ import annotations

import pytest

from airflow_kcr.errors import SpecError
from airflow_kcr.spec import parse
from airflow_kcr.spec.groups import unlike
from tests.support.patterns import ACCEPTED, REFUSED


@pytest.mark.parametrize("pattern", ACCEPTED)
def test_what_all_read_alike_is_accepted(pattern: str) -> None:
    assert list(unlike(pattern)) == []


@pytest.mark.parametrize(("pattern", "named"), REFUSED.items())
def test_what_is_read_otherwise_is_named(pattern: str, named: str) -> None:
    (text,) = unlike(pattern)
    assert text.startswith(repr(named))
    assert "; write " in text


def test_a_spec_with_such_a_pattern_is_refused_with_its_place() -> None:
    text = "region: r\nkafka: {bootstrap.servers: 'b:1'}\ngroups: [{group_id: g, pattern: '^f\\d+', pipeline: 'm:f'}]\n"
    with pytest.raises(SpecError, match=r"groups\[0\]\.pattern: .*isn't known to the Kafka client; write the char"):
        parse(text)
