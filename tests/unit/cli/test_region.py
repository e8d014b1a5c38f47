from __future__ import annotations

from pathlib import Path

import pytest

from airflow_kcr import verbs
from tests.support.driver import Driver
from tests.support.live_region import SPEC, FakeCluster
from tests.unit.cli.conftest import Kcr, Meanwhile


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "flights.yaml"
    path.write_text(SPEC)
    return path


def test_a_region_is_applied_listed_and_shown(kcr: Kcr, file: Path) -> None:
    assert kcr.json("region", "list") == []
    assert kcr.json("region", "apply", "-f", file) == {"region": "flights", "change": "created", "differences": []}
    assert [row["region"] for row in kcr.json("region", "list")] == ["flights"]
    assert kcr.json("region", "show", "flights")["state"] == "stopped"


def test_a_spec_may_come_from_standard_input(kcr: Kcr) -> None:
    assert kcr("region", "apply", "-f", "-", text=SPEC).exit_code == 0
    assert kcr.json("region", "show", "flights")["region"] == "flights"


def test_a_changed_spec_is_shown_with_when_it_counts(kcr: Kcr, driver: Driver, file: Path) -> None:
    driver.up()
    file.write_text(SPEC.replace("members: 2", "members: 3") + "max_failures: 2\n")
    promised = [
        {"field": "groups[g].members", "takes_effect": "next_checkpoint"},
        {"field": "max_failures", "takes_effect": "at_once"},
    ]
    assert kcr.json("region", "apply", "-f", file, "--dry-run")["differences"] == promised
    assert driver.region.rules.max_failures == 5
    assert kcr.json("region", "apply", "-f", file)["differences"] == promised
    assert driver.region.rules.max_failures == 2


def test_a_change_that_needs_another_region_is_refused(kcr: Kcr, driver: Driver, file: Path) -> None:
    file.write_text(SPEC.replace("group_id: g", "group_id: other"))
    assert "groups[g].group_id" in kcr.refused("region", "apply", "-f", file, status=3)


def test_a_bad_spec_shows_all_findings_with_their_lines(kcr: Kcr, tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("region: Flights!\nkafka: {bootstrap.servers: 'b:9092', group.id: x}\ngroups: []\n")
    said = kcr.refused("region", "apply", "-f", path, status=2)
    assert "line 1" in said
    assert "line 2" in said
    assert "line 3" in said
    assert "3 finding(s)" in said


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        ("region show Flights!", 2, "a-z"),
        ("region apply -f nowhere.yaml", 2, "nowhere.yaml"),
        ("events flights --last 3 --after 1", 2, "exclude each other"),
        ("region pause flights", 3, "start it"),
        ("region drain flights", 3, "resume it before"),
        *(
            (f"region {verb} flight", 3, "it has: flights")
            for verb in ("show", "start", "drain", *(verb.name for verb in verbs.STEERING))
        ),
        *((f"{command} flight", 3, "it has: flights") for command in ("events", "verify", "lag")),
    ],
)
def test_what_can_not_be_is_refused_with_what_to_do(
    kcr: Kcr, driver: Driver, cluster: FakeCluster, arguments: str, status: int, said: str
) -> None:
    assert said in kcr.refused(*arguments.split(), status=status)


# -- start -------------------------------------------------------------------------------------------------------------


def test_a_start_returns_at_once_unless_it_is_to_wait(kcr: Kcr, driver: Driver, cluster: FakeCluster) -> None:
    assert kcr.json("region", "start", "flights")["state"] == "starting"


def test_a_start_that_waits_too_long_ends_with_status_5(kcr: Kcr, driver: Driver, cluster: FakeCluster) -> None:
    said = kcr.refused("region", "start", "flights", "--wait", "--timeout", "10ms", status=5)
    assert "gave up after 0.01 s" in said
    assert "g[1] is not there" in said


def test_a_listed_topic_that_does_not_exist_is_an_error_and_nothing_starts(
    kcr: Kcr, driver: Driver, cluster: FakeCluster
) -> None:
    cluster.counts = {}
    assert "t (group g)" in kcr.refused("region", "start", "flights", status=2)
    assert kcr.json("region", "show", "flights")["state"] == "stopped"


def test_a_broker_out_of_reach_is_an_error_and_nothing_starts_unless_it_is_not_to_be_asked(
    kcr: Kcr, driver: Driver, cluster: FakeCluster
) -> None:
    cluster.is_away = True
    assert "broker.invalid:9092" in kcr.refused("region", "start", "flights", status=4)
    assert kcr.json("region", "show", "flights")["state"] == "stopped"
    assert kcr.json("region", "start", "flights", "--skip-topic-check")["state"] == "starting"


def test_a_timeout_needs_something_to_wait_for(kcr: Kcr, driver: Driver) -> None:
    assert "--wait" in kcr.refused("region", "stop", "flights", "--timeout", "5m", status=2)
    assert "has no unit" in kcr.refused("region", "stop", "flights", "--wait", "--timeout", "5", status=2)
    assert driver.region.state == "stopped"


# -- the other verbs ---------------------------------------------------------------------------------------------------


def test_a_pause_and_a_resume(kcr: Kcr, driver: Driver, cluster: FakeCluster) -> None:
    driver.up()
    assert kcr.json("region", "pause", "flights", "--wait")["desired_state"] == "paused"
    assert kcr.json("region", "resume", "flights", "--wait")["desired_state"] == "running"


def test_a_boundary_needs_a_zone(kcr: Kcr, driver: Driver) -> None:
    assert "has no zone" in kcr.refused("region", "drain", "flights", "--until", "2026-01-01T10:00:00", status=2)
    driver.up()
    checkpoint = kcr.json("region", "drain", "flights", "--until", "2026-01-01T10:00:00+01:00")
    assert checkpoint["boundary"] == "2026-01-01T09:00:00Z"


def test_a_stop_that_waits_ends_when_all_have_left(kcr: Kcr, driver: Driver, meanwhile: Meanwhile) -> None:
    driver.up()
    driver.process()

    def rest() -> None:
        driver.publish()
        for member in driver.all_members():
            driver.read_back(member)
        for member in driver.all_members():
            driver.leave(member)

    meanwhile(driver.complete, rest)
    assert kcr.json("region", "stop", "flights", "--wait")["state"] == "stopped"
    assert kcr("region", "delete", "flights", "--yes").exit_code == 0


def test_a_kill_says_what_it_does(kcr: Kcr, driver: Driver) -> None:
    driver.up()
    driver.process()
    driver.checkpoint("n")
    called = kcr("region", "kill", "flights", "-o", "json")
    assert '"state": "stopped"' in called.stdout
    assert "epoch 2 voids running batches" in called.stderr
    assert "the next start resumes at its restore point (sequence 2)" in called.stderr


def test_a_delete_has_to_be_confirmed(kcr: Kcr, driver: Driver) -> None:
    assert "--yes" in kcr.refused("region", "delete", "flights", status=2)
    assert [row["region"] for row in kcr.json("region", "list")] == ["flights"]
    assert kcr("region", "delete", "flights", "--yes").exit_code == 0
    assert kcr.json("region", "list") == []


def test_the_history_names_who_asked(kcr: Kcr, driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "pat")
    kcr("region", "start", "flights", "--skip-topic-check")
    [asked] = [e for e in kcr.json("events", "flights") if e["kind"] == "DesiredStateChanged"]
    assert asked["body"]["requester"] == {"who": "pat"}


def test_a_container_without_user_names_still_works(kcr: Kcr, driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> str:
        raise OSError("no username set in the environment")

    monkeypatch.setattr("getpass.getuser", nobody)
    assert kcr("region", "start", "flights", "--skip-topic-check").exit_code == 0
