"""A deferred task whose driver is in a cluster: what Kubernetes or YARN says of the driver is an answer, too."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from airflow_kcr.errors import ServiceFailed
from airflow_kcr.goals import MembersEnded
from airflow_kcr.hooks import pods as hook
from airflow_kcr.hooks import shared_answers, yarn
from airflow_kcr.hooks.pods import DriverPod, DriverPods, DriverState
from airflow_kcr.hooks.yarn import ApplicationEnd, DriverApplication
from airflow_kcr.protocol.region.commands import KillRegion
from airflow_kcr.protocol.values import GroupId
from airflow_kcr.triggers import drivers, waits
from airflow_kcr.triggers.drivers import ClusterDriver
from airflow_kcr.triggers.payloads import Status, TriggerAnswer
from airflow_kcr.triggers.waits import RegionTrigger
from tests.support.driver import Driver
from tests.support.endpoint import Answer, Endpoint, Request
from tests.support.kubernetes_page import SPACE
from tests.support.kubernetes_pods import Pods, kubernetes_pods
from tests.unit.triggers.conftest import running, until

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drivers, "PERIOD", 0.05)
    monkeypatch.setattr(shared_answers, "FRESH", 0.0)
    monkeypatch.setattr(waits, "SETTLED_WITHIN", 0.5)


@pytest.fixture
def pods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pods]:
    with kubernetes_pods(tmp_path) as pods:
        monkeypatch.setenv("KUBECONFIG", str(pods.api.client_configuration(tmp_path, SPACE, "kcr-submit")))
        yield pods


def trigger(driver: ClusterDriver) -> RegionTrigger:
    waiting_for = MembersEnded(group=GroupId("g"), indexes=(0,), before=(0,), last_request="try 1")
    return RegionTrigger(
        kcr_conn_id="kcr_default",
        region="flights",
        waiting_for=waiting_for.to_json(),
        deadline=60.0,
        driver=asdict(driver),
    )


async def answer(made: RegionTrigger) -> TriggerAnswer:
    (found,) = [TriggerAnswer.from_json(event.payload) async for event in made.run()]
    return found


def answered(driver: ClusterDriver, then: Callable[[], object] = lambda: None) -> TriggerAnswer:
    """Return what the trigger says after something has happened."""
    found: list[TriggerAnswer] = []

    async def main() -> None:
        task = asyncio.create_task(answer(trigger(driver)))
        await asyncio.sleep(0.3)
        assert not task.done()
        await asyncio.to_thread(then)
        found.append(await task)
        # The poller ends with its last waiter, and closes its connection.
        await until(lambda: all(one.get_name() != "kcr poller" for one in asyncio.all_tasks()))

    running(main)
    return found[0]


@pytest.mark.parametrize(
    ("code", "reason", "said", "status", "detail"),
    [
        (2, "Error", "kcr: the pipeline jobs.x:f does not import\n", Status.REFUSED, "the pipeline jobs.x:f does not"),
        (3, "Error", "kcr: g[0] is held\n", Status.REFUSED, r"ended with status 3 \(Error\): g\[0\] is held"),
        (4, "Error", "kcr: the store does not answer\n", Status.TIMED_OUT, "the store does not answer; another try"),
        (137, "OOMKilled", "", Status.TIMED_OUT, r"status 137 \(OOMKilled\): its last words are above; another try"),
        (0, "Completed", "", Status.TIMED_OUT, "ended in good order while the region goes on; another try"),
    ],
)
def test_a_driver_that_ends_says_how_and_its_status_whether_a_retry_can_help(
    driver: Driver, pods: Pods, code: int, reason: str, said: str, status: Status, detail: str
) -> None:
    here = pods.driver()
    pods.run()
    found = answered(here, lambda: pods.end(code, reason, said=said))
    assert found.status is status
    assert re.search(detail, found.detail), found.detail
    assert "the driver's pod kcr-driver (namespace kcr)" in found.detail


def test_the_last_lines_of_a_driver_that_failed_are_shown(
    driver: Driver, pods: Pods, capsys: pytest.CaptureFixture[str]
) -> None:
    here = pods.driver()
    said = "".join(f"line {n}\n" for n in range(100))
    answered(here, lambda: pods.end(1, said=said))
    shown = capsys.readouterr().out
    assert "driver: line 99" in shown
    assert "driver: line 79" not in shown


def test_a_pod_that_was_deleted_is_noticed(driver: Driver, pods: Pods) -> None:
    here = pods.driver()
    pods.run()
    found = answered(here, pods.remove)
    assert found.status is Status.TIMED_OUT
    assert "is gone: it was deleted, or its node was" in found.detail


def test_a_driver_that_can_t_start_says_why_and_is_deleted_lest_it_starts_later(driver: Driver, pods: Pods) -> None:
    here = pods.driver()
    pods.wait_for("ErrImagePull", "not found")  # the kubelet tries again
    found = answered(here, lambda: pods.wait_for("ImagePullBackOff", 'Back-off pulling image "x:1"'))
    assert found.status is Status.TIMED_OUT
    assert 'can\'t start, and was deleted: ImagePullBackOff: Back-off pulling image "x:1"' in found.detail
    assert pods.left() == set()


def test_a_driver_that_finds_no_room_is_waited_for_and_that_is_said_once(
    driver: Driver, pods: Pods, capsys: pytest.CaptureFixture[str]
) -> None:
    here = pods.driver()
    pods.find_no_room("0/1 nodes are available: 1 Insufficient cpu.")
    answered(here, lambda: driver.handle(KillRegion()))
    shown = capsys.readouterr().out
    assert shown.count("waits for room: Unschedulable: 0/1 nodes are available: 1 Insufficient cpu.") == 1
    assert pods.left() == {"kcr-driver"}


def test_an_end_with_the_region_s_is_the_region_s_and_lost_drivers_are_cleaned_up(driver: Driver, pods: Pods) -> None:
    here = pods.driver()
    pods.run()
    for name, code in (("kcr-lost", 1), ("kcr-earlier", 0)):
        pods.driver(name)
        pods.end(code, name=name)
    pods.driver("kcr-other", "kcr flights g 1")
    pods.end(1, name="kcr-other")

    def stop() -> None:
        pods.end(0)
        driver.handle(KillRegion())

    assert answered(here, stop) == TriggerAnswer(status=Status.REACHED)
    assert pods.left() == {"kcr-driver", "kcr-earlier", "kcr-other"}


def test_where_kubernetes_can_t_be_asked_the_region_alone_says_it(
    driver: Driver, pods: Pods, capsys: pytest.CaptureFixture[str]
) -> None:
    here = pods.driver()
    pods.run()
    pods.api.stop()
    assert answered(here, lambda: driver.handle(KillRegion())).status is Status.REACHED
    shown = capsys.readouterr().out
    assert shown.count("can't be watched; only its members' leases tell whether it lives") == 1


def test_without_the_right_to_read_its_log_a_driver_still_has_ended(
    driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with kubernetes_pods(tmp_path, without="pods/log") as pods:
        monkeypatch.setenv("KUBECONFIG", str(pods.api.client_configuration(tmp_path, SPACE, "kcr-submit")))
        here = pods.driver()
        found = answered(here, lambda: pods.end(2))
    assert found.status is Status.REFUSED
    assert "the driver's log can't be read" in capsys.readouterr().out


def test_a_token_that_has_been_renewed_is_read_again(driver: Driver, pods: Pods, tmp_path: Path) -> None:
    here = pods.driver()
    pods.run()
    pods.api._tokens.clear()

    def renewed() -> None:
        pods.api.client_configuration(tmp_path, SPACE, "kcr-submit")
        pods.remove()

    assert "is gone" in answered(here, renewed).detail


# -- many drivers ------------------------------------------------------------------------------------------------------


def states(pods: list[DriverPod]) -> list[DriverState]:
    """Return how pods are, as many triggers ask for them at the same moment."""
    with ThreadPoolExecutor(8) as threads:
        return list(threads.map(lambda one: DriverPods.of(one).state(one.pod), pods))


def test_one_list_answers_for_all_drivers_and_only_who_is_not_on_it_is_asked_for(
    pods: Pods, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_answers, "FRESH", 60.0)
    running = [pods.driver(f"kcr-driver-{n}", f"kcr flights g {n}") for n in range(20)]
    for one in running:
        pods.run(one.pod)
    assert states(running) == [DriverState()] * 20
    assert [one.verb for one in pods.api.requests] == ["list"]

    # Those that have succeeded are not on the list: they stay in the namespace, and are ever more.
    over, later = pods.driver("kcr-over"), pods.driver("kcr-later")
    pods.end(0, "Completed", "kcr-over")
    gone = DriverPod.of(f"k8s://{pods.api.address}", SPACE, "kcr-gone", "kcr flights g 0")
    assert states([over, later, gone]) == [
        DriverState(status=0, reason="Completed"),
        DriverState(),
        DriverState(is_there=False),
    ]
    assert [one.verb for one in pods.api.requests] == ["list", "get", "get", "get"]


def test_an_api_server_that_does_not_answer_is_asked_once_for_all(pods: Pods, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def client(server: str) -> None:
        asked.append(server)
        raise OSError("no route to host")

    monkeypatch.setattr(shared_answers, "FRESH", 60.0)
    monkeypatch.setattr(hook, "_client", client)
    for n in range(20):
        with pytest.raises(ServiceFailed, match="no route to host"):
            states([pods.driver(f"kcr-driver-{n}")])
    assert asked == [pods.api.address]


# -- YARN --------------------------------------------------------------------------------------------------------------

APPLICATION = "application_17_0042"


@dataclass(slots=True)
class Manager:
    """What a resource manager says of an application, and of others that run."""

    said: Answer = field(default_factory=lambda: about("RUNNING", "UNDEFINED"))
    running: list[str] = field(default_factory=list)
    url: str = ""
    asked: list[str] = field(default_factory=list)

    def answer(self, request: Request) -> Answer | None:
        assert request.headers["Accept"] == "application/json"
        found = urlsplit(request.path)
        self.asked.append(found.path.removeprefix("/ws/v1/cluster/"))
        if found.path != "/ws/v1/cluster/apps":
            assert found.path == f"/ws/v1/cluster/apps/{APPLICATION}"
            return self.said
        wanted = parse_qs(found.query)
        assert wanted["applicationTags"] == ["kcr-application"]
        assert "RUNNING" in wanted["states"][0].split(",")
        listed = {"app": [{"id": one} for one in self.running]} if self.running else None
        return Answer(body=json.dumps({"apps": listed}).encode())

    @property
    def driver(self) -> DriverApplication:
        return DriverApplication.of(f"{self.url}/proxy/{APPLICATION}/", APPLICATION)


def about(state: str, final: str, diagnostics: str = "") -> Answer:
    """Return an answer about an application."""
    told = {"id": APPLICATION, "state": state, "finalStatus": final, "diagnostics": diagnostics}
    return Answer(body=json.dumps({"app": told}).encode())


UNKNOWN = Answer(404, b'{"RemoteException": {"exception": "NotFoundException", "message": "app not found"}}')


@pytest.fixture
def manager() -> Iterator[Manager]:
    manager = Manager()
    with Endpoint(manager.answer) as endpoint:
        manager.url = endpoint.url
        yield manager


@pytest.mark.parametrize(
    ("said", "status", "detail"),
    [
        (
            about("FINISHED", "FAILED", "User application exited with status 2"),
            Status.REFUSED,
            r"status 2 \(FAILED\): its last words are above",
        ),
        (
            about("FAILED", "FAILED", "AM Container exited with  exitCode: 137\nFailing this attempt."),
            Status.TIMED_OUT,
            r"status 1 \(FAILED\): its last words are above; another try",
        ),
        (about("KILLED", "KILLED", "killed by user root"), Status.TIMED_OUT, r"status 1 \(KILLED\)"),
        (about("FINISHED", "SUCCEEDED"), Status.TIMED_OUT, "ended in good order while the region goes on; another try"),
        (UNKNOWN, Status.TIMED_OUT, "the resource manager doesn't know it any more"),
    ],
    ids=["refused", "lost", "killed", "in good order", "forgotten"],
)
def test_an_application_of_yarn_that_ends_says_how(
    driver: Driver, manager: Manager, capsys: pytest.CaptureFixture[str], said: Answer, status: Status, detail: str
) -> None:
    found = answered(manager.driver, lambda: setattr(manager, "said", said))
    assert found.status is status
    assert re.search(detail, found.detail), found.detail
    assert f"YARN's application {APPLICATION} has ended" in found.detail
    diagnostics = json.loads(said.body).get("app", {}).get("diagnostics", "")
    shown = capsys.readouterr().out
    assert all(f"driver: {line}" in shown for line in diagnostics.splitlines())


def test_an_end_on_yarn_with_the_region_s_is_the_region_s(driver: Driver, manager: Manager) -> None:
    def stop() -> None:
        manager.said = about("FINISHED", "SUCCEEDED")
        driver.handle(KillRegion())

    assert answered(manager.driver, stop) == TriggerAnswer(status=Status.REACHED)


def test_one_list_answers_for_all_applications_and_only_who_is_not_on_it_is_asked_for(
    manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_answers, "FRESH", 60.0)
    manager.running = [f"application_17_{n}" for n in range(20)]
    with ThreadPoolExecutor(8) as threads:
        applications = [DriverApplication(manager=manager.url, application=one) for one in manager.running]
        assert list(threads.map(DriverApplication.end, applications)) == [None] * 20
    assert manager.asked == ["apps"]

    manager.said = about("FINISHED", "SUCCEEDED")
    assert manager.driver.end() == ApplicationEnd(status=0, reason="SUCCEEDED", diagnostics=("",))
    assert manager.asked == ["apps", f"apps/{APPLICATION}"]


def test_a_resource_manager_that_hangs_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def hang(request: Request) -> None:
        asked.append(request.path)

    monkeypatch.setattr(shared_answers, "FRESH", 60.0)
    monkeypatch.setattr(yarn, "_ANSWER_WITHIN", 0.3)
    with Endpoint(hang) as endpoint:
        for n in range(20):
            with pytest.raises(ServiceFailed, match="timed out"):
                DriverApplication(manager=endpoint.url, application=f"application_17_{n}").end()
    assert len(asked) == 1


@pytest.mark.parametrize(
    "said", [Answer(401, b"Authentication required"), Answer(404, b"no such page"), Answer(200, b"<html>")]
)
def test_where_yarn_can_t_be_asked_the_region_alone_says_it(
    driver: Driver, manager: Manager, capsys: pytest.CaptureFixture[str], said: Answer
) -> None:
    manager.said = said
    assert answered(manager.driver, lambda: driver.handle(KillRegion())).status is Status.REACHED
    shown = capsys.readouterr().out
    assert shown.count(f"YARN's application {APPLICATION} can't be watched; only its members' leases tell") == 1
