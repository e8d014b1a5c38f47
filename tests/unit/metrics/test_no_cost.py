"""What metrics cost the work that they are of: no batch waits for who reads them, and reading them asks no one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.request import urlopen

from airflow_kcr.metrics.declared import MEMBER_METRICS, MemberFacts
from airflow_kcr.metrics.outlets import families, published
from tests.support.runtime_fakes import FLIGHTS, NOON, p, records
from tests.unit.metrics.test_exporter import free_port
from tests.unit.runtime.test_host import Stage, stage

if TYPE_CHECKING:
    import pytest

__all__ = ["stage"]


def test_who_reads_metrics_and_hangs_holds_up_no_batch(stage: Stage) -> None:
    stage.declare(records(100))
    member = stage.member()
    stage.caught_up()
    is_reading, release = threading.Event(), threading.Event()
    readers: list[threading.Thread] = []

    def facts() -> Iterator[MemberFacts]:
        readers.append(threading.current_thread())
        is_reading.set()
        release.wait(20)
        yield MemberFacts(region=FLIGHTS, snapshot=member.host.snapshot)

    answers: list[bytes] = []

    def scrape() -> None:
        with urlopen(f"http://localhost:{port}/metrics", timeout=20) as answer:
            answers.append(answer.read())

    port = free_port()
    with published(MEMBER_METRICS, facts, port):
        scraper = threading.Thread(target=scrape)
        scraper.start()
        assert is_reading.wait(20)
        stage.logs[p(0)].stamps.extend([NOON] * 100)
        stage.caught_up()
        stage.checkpoint("meanwhile")
        assert answers == []
        # The only one to ask is who scrapes: no start or end of a batch does.
        assert len(readers) == 1
        release.set()
        scraper.join(20)
    assert b"kcr_batch_records_total" in answers[0]


def test_metrics_are_read_of_what_a_member_keeps_anyway(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.declare(records(100))
    member = stage.member()
    stage.caught_up()
    member.host.terminate()
    assert member.host.wait(20) is not None

    def asked(*_: object, **__: object) -> None:
        raise AssertionError("reading metrics has asked for something")

    monkeypatch.setattr("socket.socket", asked)
    monkeypatch.setattr("builtins.open", asked)
    stage.store.away = True
    facts = [MemberFacts(region=FLIGHTS, snapshot=member.host.snapshot)]
    found = {sample.name: sample.value for family in families(MEMBER_METRICS, facts) for sample in family.samples}
    assert found["kcr_batch_records_total"] == 100
