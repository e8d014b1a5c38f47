"""`kcr report`: one page that stands alone, on which whatever people have named is text."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

from airflow_kcr.protocol.region.commands import PinCheckpoint
from airflow_kcr.protocol.targets import ToCheckpoint
from airflow_kcr.protocol.values import CheckpointNumber
from tests.support.driver import Driver
from tests.support.lag_samples import keep_lag
from tests.support.live_region import FakeCluster
from tests.support.scripts import checkpoints_of_ten, rewind
from tests.unit.cli.conftest import Kcr

EVIL = "</td><script>alert(1)</script><img src=x onerror=alert(1)>"


class Page(HTMLParser):
    """The elements of a page, its attributes and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_post_mortem_is_one_page_with_what_happened_in_which_names_are_text(
    kcr: Kcr, driver: Driver, cluster: FakeCluster, tmp_path: Path
) -> None:
    driver.up()
    first, *_ = checkpoints_of_ten(driver, 3)
    driver.handle(PinCheckpoint(sequence=CheckpointNumber(first), label=EVIL, reason=EVIL))
    rewind(driver, ToCheckpoint(sequence=first))
    driver.process(width=10)
    driver.checkpoint("after")
    keep_lag(driver, cluster, minutes=5)
    keep_lag(driver, cluster, minutes=0)
    file = tmp_path / "flights.html"
    assert f"wrote {file}" in kcr("report", "flights", "--html", file).stderr
    text = file.read_text(encoding="utf-8")
    page = Page(text)
    assert {"script", "img", "link", "iframe", "form"}.isdisjoint(page.tags)
    assert not any(
        name in {"src", "href", "onerror", "style"} and "fill" not in str(of) for name, of in page.attributes
    )
    assert "url(" not in text and "@import" not in text  # noqa: PT018 - it loads nothing
    assert page.tags.count("svg") == 4
    replayed = re.search(r"<title>reset [^<]*: (\d+) of (\d+) offsets processed again</title>", text)
    assert replayed is not None
    assert int(replayed[2]) > int(replayed[1]) > 0
    assert page.tags.count("circle") == len(driver.region.archive.checkpoints())
    assert page.text.count(EVIL) >= 2
    for expected in ("Region flights", "timeline 1", "timeline 2", "to-checkpoint", "CommitResolved", "drain"):
        assert expected in page.text, expected
    assert kcr("report", "flights", "--html", "-").stdout.count("<html") == 1


def test_a_region_that_has_done_nothing_has_a_page(kcr: Kcr, driver: Driver) -> None:
    page = Page(kcr("report", "flights", "--html", "-").stdout)
    assert "There is nothing of it." in page.text
    assert re.search(r"state\s*stopped", page.text)


def test_a_page_that_can_t_be_written_says_why(kcr: Kcr, driver: Driver, tmp_path: Path) -> None:
    assert "can't be written: No such file" in kcr.refused(
        "report", "flights", "--html", tmp_path / "none" / "x.html", status=2
    )
