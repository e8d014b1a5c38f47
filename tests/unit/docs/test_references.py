"""What docstrings refer to, and what a page shows as output: both have to be there."""

from __future__ import annotations

import re
from pathlib import Path

import airflow_kcr
from airflow_kcr.api import Region, ResetRequest
from airflow_kcr.protocol.targets import ToInitial
from tests.support.live_region import FakeCluster, live_region

PACKAGE = Path(airflow_kcr.__file__).parent
PAGE = PACKAGE.parent / "docs" / "how-to" / "reset-a-region.md"

REFERENCE = re.compile(r"(?:[Ss]ee|What) `([a-z_]+)\.\w")
"""A module, before the name of something in it."""


def test_the_modules_that_docstrings_refer_to_are_there() -> None:
    files = [*PACKAGE.rglob("*.py")]
    known = {path.stem for path in files} | {path.parent.name for path in files}
    gone = [
        f"{path.relative_to(PACKAGE)}: {module}"
        for path in files
        for module in REFERENCE.findall(path.read_text(encoding="utf-8"))
        if module not in known
    ]
    assert gone == []


def test_the_lines_of_a_plan_that_the_page_shows_are_lines_that_a_plan_has(database_url: str) -> None:
    with live_region(database_url) as driver:
        driver.up()
        driver.process(width=10)
        plan = Region(driver.name, driver.store, clusters=FakeCluster().clusters).plan_reset(
            ResetRequest(target=ToInitial())
        )
    known = {*plan.told(lambda moment: moment.isoformat())}
    blocks = re.findall(r"```console\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    shown = {
        label
        for block in blocks
        if "$ kcr reset plan" in block
        for label in re.findall(r"^((?:clamped|not|records|checkpoints|DAG|out)[\w ,]*?) {2,}\S", block, re.MULTILINE)
    }
    assert {"clamped into the log", "not restored, as mode upsert keeps no history"} <= shown
    assert shown <= known
