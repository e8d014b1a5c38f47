"""The console of a store with very many regions, and of a region with very many partitions; `pytest -m browser`."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from airflow_kcr.hooks.links import region_path
from airflow_kcr.protocol.region.commands import DeclareRegion
from airflow_kcr.protocol.region.state import Spec
from airflow_kcr.protocol.values import RegionName, TopicName
from airflow_kcr.spec import parse
from airflow_kcr.store.schema_upgrade import upgrade
from tests.support.browser import Person, person_at
from tests.support.console_server import console_server
from tests.support.lag_samples import keep_lag
from tests.support.live_region import SPEC, FakeCluster, live_region
from tests.support.tied import start_postgres

pytestmark = [pytest.mark.timeout(900), pytest.mark.browser]

REGIONS, PARTITIONS = 1_000, 10_000
SHOWN = 100
"""Rows of a list that are drawn at first."""

LARGEST = 100_000
"""Bytes of an answer about one region."""

TIMES = 5


@pytest.fixture(scope="module")
def person(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    """A user at the console of a store with a region of 10,000 partitions among 1,000 regions."""
    folder = tmp_path_factory.mktemp("size")
    with ExitStack() as stack:
        postgres = stack.enter_context(start_postgres(folder / "postgres"))
        metadata, store = postgres.ensure_database("airflow"), postgres.ensure_database("kcr")
        upgrade(store)
        wide = stack.enter_context(live_region(store, SPEC.replace("60s", "2h, reset: 5h"), partitions=PARTITIONS))
        wide.up()
        wide.checkpoint("first")
        wide.process(width=10)
        for minutes in range(9, -1, -1):
            keep_lag(wide, FakeCluster(counts={TopicName("t"): PARTITIONS}), minutes=minutes)
        for number in range(REGIONS - 1):
            spec = parse(SPEC.replace("flights", f"region_{number:03}").replace("group_id: g", f"group_id: g{number}"))
            declared = DeclareRegion(spec=Spec(text=spec.to_json_text(), rules=spec.rules()))
            wide.store.handle(RegionName(spec.region), declared)
        airflow = stack.enter_context(console_server(folder, metadata, store, ""))
        (user,) = (one for one in airflow.known.users if one.name == "viewer")
        one = stack.enter_context(person_at(airflow.known.url))
        one.logs_in(user.name, user.password)
        yield one


def answers(person: Person) -> list[tuple[str, int, float]]:
    """Return the answers of the console's server to the page that is open: path, bytes, milliseconds."""
    found = person.driver.execute_script(
        "return performance.getEntriesByType('resource').filter((one) => one.name.includes('/kcr/api/'))"
        ".map((one) => [new URL(one.name).pathname, one.decodedBodySize, one.duration])"
    )
    return [(str(path), int(size), float(duration)) for path, size, duration in found]


def within_the_page(person: Person, link: str, shown: str) -> float:
    """Return the milliseconds from a click on a link until a text is drawn."""
    took: float = person.driver.execute_async_script(
        """
        const [link, shown, done] = arguments;
        const start = performance.now();
        [...document.querySelectorAll("a")].find((one) => one.textContent === link).click();
        const look = () => document.body.innerText.includes(shown)
          ? requestAnimationFrame(() => done(performance.now() - start)) : requestAnimationFrame(look);
        look();
        """,
        link,
        shown,
    )
    return took


def told(what: str, times: list[float]) -> None:
    print(f"{what}: {', '.join(f'{one:.0f}' for one in times)} ms, median {statistics.median(times):.0f}")  # noqa: T201


def test_a_thousand_regions_are_listed_by_one_answer_and_few_are_drawn_at_first(person: Person) -> None:
    times: list[float] = []
    listed: list[float] = []
    size = 0
    for _ in range(TIMES):
        person.goes(region_path("flights"))
        person.reads("What it waits for")
        times.append(within_the_page(person, "All regions", f"{SHOWN} of {REGIONS:,}"))
        [*_, (path, size, duration)] = answers(person)
        assert path == "/kcr/api/regions"
        listed.append(duration)
    told(f"{REGIONS} regions drawn", times)
    told(f"{REGIONS} regions answered, {size:,} bytes", listed)
    assert len(person.driver.find_elements("css selector", "tbody tr")) == SHOWN


@pytest.mark.parametrize(
    ("tab", "shown"),
    [
        ("Partitions", "1 to 50 of 10,000"),
        ("Checkpoints", "timeline 1"),
        ("Overview", "What it waits for"),
        ("Events", "CheckpointPublished"),
    ],
)
def test_ten_thousand_partitions_come_in_small_answers(person: Person, tab: str, shown: str) -> None:
    times = []
    for _ in range(TIMES):
        person.goes(f"{region_path('flights')}?tab=resets")
        person.reads("flights")
        times.append(within_the_page(person, tab, shown))
    told(f"{tab} of {PARTITIONS} partitions drawn", times)
    sizes = {path.rpartition("/")[2]: size for path, size, _ in answers(person)}
    told(f"{tab} answered, {sizes}", [duration for *_, duration in answers(person)])
    assert max(sizes.values()) <= LARGEST, sizes
