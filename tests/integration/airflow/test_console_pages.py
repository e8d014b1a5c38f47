"""Each page of the console as people see it: in both themes, on a phone, with a screen reader; `pytest -m browser`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from airflow_kcr.hooks.links import region_path
from tests.integration.airflow.test_console import REGION, Console, console, logged_in, pressed
from tests.support.browser import HEIGHT, WIDTH, Person

__all__ = ["console"]

pytestmark = [pytest.mark.timeout(600), pytest.mark.browser]

OURS = ("section[aria-label=Regions]", "[role=dialog]")
"""What of a page is the console's."""


def opens_reset(editor: Person) -> None:
    pressed(editor, "Reset …")
    editor.press("option[value='to-earliest']")
    editor.reads("What it would do", "records processed again")


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
    "reset": (region_path(REGION), "What it waits for", opens_reset),
    "pause": (region_path(REGION), "What it waits for", opens_pause),
    "nowhere": (region_path("nowhere"), "there is no region", None),
}
"""Where each page is, what it shows, and what opens what is on it."""

PICTURED = ("regions", "overview", "checkpoints", "partitions", "resets", "events", "reset")
"""The pages that docs/images has."""


@pytest.fixture(scope="module")
def editor(console: Console) -> Iterator[Person]:
    yield from logged_in(console, "editor")


def opened(editor: Person, page: str) -> None:
    path, shown, more = PAGES[page]
    editor.goes(path)
    editor.reads(shown)
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


@pytest.mark.parametrize("look", ["light", "dark", "phone"])
@pytest.mark.parametrize("page", PICTURED)
def test_a_page_is_pictured(editor: Person, page: str, look: str) -> None:
    editor.driver.set_window_size(*((420, 900) if look == "phone" else (WIDTH, HEIGHT)))
    editor.prefers("dark" if look == "dark" else "light")
    opened(editor, page)
    editor.stands_still()
    assert editor.driver.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")
    assert editor.takes_picture(f"console-{page}-{look}") <= 150_000
