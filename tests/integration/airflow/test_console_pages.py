"""Each page of the console as people see it: in both themes, on a phone, with a screen reader, with names that are
markup, and without a store; `pytest -m browser`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from urllib.parse import quote

import pytest

from airflow_kcr.hooks.links import region_path
from airflow_kcr.protocol.region.commands import PinCheckpoint
from airflow_kcr.protocol.region.resets import halt
from airflow_kcr.protocol.region.rows import Halt, HaltReason, Requester
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.targets import ToCheckpoint
from tests.integration.airflow.test_console import (
    EVIL,
    REGION,
    Console,
    checkpoints,
    console,
    logged_in,
    opens_reset,
    pressed,
    run_tab,
    store_away,
    with_runs,
)
from tests.support.browser import HEIGHT, WIDTH, Person
from tests.support.driver import Driver
from tests.support.kafka import Kafka
from tests.support.lag_samples import keep_lag
from tests.support.live_region import FakeCluster, live_region

__all__ = ["console"]

pytestmark = [pytest.mark.timeout(600), pytest.mark.browser]

OURS = ("section[aria-label=Regions]", "section[aria-label='Checkpoint of the run']", "[role=dialog]")
"""What of a page is the console's."""


def opens_plan(editor: Person) -> None:
    opens_reset(editor, "to-earliest")
    editor.reads("What it would do", "4 of 4 partition(s)")


def opens_offsets(editor: Person) -> None:
    opens_reset(editor, "by-partition")
    for number in (0, 2):
        editor.press(f"input[aria-label$='-{number}']")
        editor.types("25")
    editor.reads("2 of 4 partition(s)")


def opens_pause(editor: Person) -> None:
    pressed(editor, "Pause")
    editor.reads("Batches in flight finish")


def opens_checkpoint(editor: Person) -> None:
    editor.press("button[aria-label^='Checkpoint ']")
    editor.reads("Drained in")


def opens_undone_runs(editor: Person) -> None:
    pressed(editor, "4 checkpoints")
    editor.reads("before__3", "before__5")


PAGES: dict[str, tuple[str, str, Callable[[Person], None] | None]] = {
    "regions": ("/plugin/kcr", "halfway", None),
    "overview": (region_path(REGION), "What it waits for", None),
    "checkpoints": (f"{region_path(REGION)}?tab=checkpoints", "timeline 2", None),
    "checkpoint": (f"{region_path(REGION)}?tab=checkpoints", "timeline 2", opens_checkpoint),
    "partitions": (f"{region_path(REGION)}?tab=partitions", "1 to 4 of 4", None),
    "resets": (f"{region_path(REGION)}?tab=resets", "to-checkpoint", None),
    "undone-runs": (f"{region_path(REGION)}?tab=resets", "to-checkpoint", opens_undone_runs),
    "events": (f"{region_path(REGION)}?tab=events", "CheckpointPublished", None),
    "charts": (f"{region_path(REGION)}?tab=charts", "Replay windows of resets", None),
    "reset": (region_path(REGION), "What it waits for", opens_plan),
    "offsets": (region_path(REGION), "What it waits for", opens_offsets),
    "run": (run_tab(1), "Before it", None),
    "pause": (region_path(REGION), "What it waits for", opens_pause),
    "nowhere": (region_path("nowhere"), "there is no region", None),
}
"""Where each page is, what it shows, and what opens what is on it."""

PICTURED = (
    *("regions", "overview", "checkpoints", "partitions", "resets", "events", "charts"),
    *("reset", "offsets"),
)
"""The pages that docs/images has."""


@pytest.fixture(scope="module")
def editor(console: Console) -> Iterator[Person]:
    with_runs(console, "after__1")
    yield from logged_in(console, "editor")


def opened(editor: Person, page: str) -> None:
    path, shown, more = PAGES[page]
    editor.goes(path)
    editor.reads(shown)
    editor.sees(lambda: "Reading " not in editor.reads(shown), "a page that has read all")
    if more is not None:
        more(editor)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("page", PAGES)
def test_nothing_on_a_page_keeps_people_from_using_it(editor: Person, page: str, theme: str) -> None:
    editor.driver.set_window_size(WIDTH, HEIGHT)
    editor.prefers(theme)
    opened(editor, page)
    assert editor.driver.execute_script("return document.documentElement.className").split().count(theme) == 1
    editor.stands_still()
    assert editor.finds_barriers(*OURS) == []


def test_a_barrier_is_found(editor: Person) -> None:
    opened(editor, "events")
    editor.driver.execute_script("document.querySelector(arguments[0]).append(new Image())", OURS[0])
    assert any(found.startswith("image-alt") for found in editor.finds_barriers(*OURS))


def is_within(person: Person) -> bool:
    """Return whether nothing of the page lies beside the window."""
    return bool(person.driver.execute_script("return document.documentElement.scrollWidth <= window.innerWidth"))


@pytest.mark.parametrize("look", ["light", "dark", "phone"])
@pytest.mark.parametrize("page", PICTURED)
def test_a_page_is_pictured(editor: Person, page: str, look: str) -> None:
    editor.driver.set_window_size(*((420, 900) if look == "phone" else (WIDTH, HEIGHT)))
    editor.prefers("dark" if look == "dark" else "light")
    opened(editor, page)
    editor.stands_still()
    assert is_within(editor)
    assert editor.takes_picture(f"console-{page}-{look}") <= 150_000


@pytest.mark.parametrize("page", [page for page in PAGES if page not in PICTURED])
def test_nothing_else_lies_beside_the_window_of_a_phone(editor: Person, page: str) -> None:
    editor.driver.set_window_size(420, 900)
    opened(editor, page)
    assert is_within(editor)


@pytest.mark.parametrize("page", [page for page, (_, _, more) in PAGES.items() if more is None and page != "nowhere"])
def test_a_page_that_is_opened_while_the_store_is_away_says_so_and_recovers(
    console: Console, editor: Person, page: str
) -> None:
    path, shown, _ = PAGES[page]
    with store_away(console):
        editor.goes(path)
        editor.reads("not currently accepting connections")
    editor.sees(lambda: "not currently accepting connections" not in editor.reads(shown), "the page as it should be")


@pytest.fixture(scope="module")
def hostile(console: Console, kafka: Kafka) -> Iterator[Driver]:
    """A halted region of which all that others may name is markup."""
    by = Requester(who=EVIL, dag_id="hostile_checkpoint", run_id="hostile__1", reason=EVIL)
    with live_region(console.store_url, console.hostile) as region:
        for number in range(4):
            partition = region.partition(number, group=EVIL, topic=console.topic)
            region.grow(partition, end=300, topic_id=kafka.topic_id(console.topic))
        region.up()
        members = [region.member(index, group=EVIL) for index in range(2)]
        for name in ("first", "undone"):
            region.process(*members)
            region.checkpoint(name, requester=by)
        first = checkpoints(region)[0]
        region.handle(PinCheckpoint(sequence=first, label=EVIL, reason=EVIL, who=EVIL))
        region.reset(ToCheckpoint(sequence=first), requester=by)
        region.complete()
        region.finish_reset()
        region.process(*members)
        region.checkpoint("again", requester=by)
        for minutes in (5, 0):
            keep_lag(region, FakeCluster(), minutes=minutes)
        with_runs(console, "hostile__1", region="hostile")
        region.store.decide(region.name, halted)
        yield region


def halted(region: Region, now: datetime) -> tuple[Region, None]:
    reason = Halt(reason=HaltReason.FOREIGN_CONSUMER, text=EVIL, choices=(EVIL,))
    return halt(region, now, reason), None


def opens_pinned(editor: Person) -> None:
    opens_reset(editor, "to-checkpoint", region="hostile")
    editor.sees(lambda: EVIL in editor.one("select[name=value]").text, "the label of the pin")


HOSTILE: dict[str, tuple[str, Callable[[Person], None] | None]] = {
    "home": ("/", None),
    "regions": ("/plugin/kcr", None),
    "overview": (region_path("hostile"), None),
    "checkpoints": (f"{region_path('hostile')}?tab=checkpoints", opens_checkpoint),
    "partitions": (f"{region_path('hostile')}?tab=partitions", None),
    "resets": (f"{region_path('hostile')}?tab=resets", None),
    "events": (f"{region_path('hostile')}?tab=events", None),
    "charts": (f"{region_path('hostile')}?tab=charts", None),
    "reset": (region_path("hostile"), opens_pinned),
    "run": ("/dags/hostile_checkpoint/runs/hostile__1/plugin/kcr_run", None),
    "name": (f"/plugin/kcr/regions/{quote(EVIL, safe='')}", None),
    "store": (f"/plugin/kcr/stores/{quote(EVIL, safe='')}/regions/x", None),
    "filter": (f"/plugin/kcr?match={quote(EVIL)}", None),
}
"""Where markup is shown, and what opens it."""


@pytest.mark.parametrize("page", HOSTILE)
def test_what_others_may_name_stays_text(hostile: Driver, editor: Person, page: str) -> None:
    editor.driver.set_window_size(WIDTH, HEIGHT)
    path, more = HOSTILE[page]
    editor.goes(path)
    if page == "store":
        editor.reads("not shown here")
    else:
        editor.reads(EVIL)
    if more is not None:
        more(editor)
    # An alert would have failed the look before.
    assert editor.driver.find_elements("css selector", "img[src=x]") == []
