"""A person at Airflow's pages: a headless Chromium, which has to be installed (`apt-get install chromium-driver`)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote

from selenium.common.exceptions import WebDriverException
from selenium.webdriver import ActionChains, Chrome
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from airflow_kcr.embedded.processes import happened

if TYPE_CHECKING:
    from selenium.webdriver.remote.webelement import WebElement

Found = TypeVar("Found")

WITHIN = 60.0
POLL_PERIOD = 0.2
PICTURES_VARIABLE = "KCR_PICTURES"
"""The environment variable with the folder where pictures are kept; without it none are taken."""

WIDTH, HEIGHT = 1_200, 900

AXE = files("axe_core_python") / "axe.min.js"
"""The library that finds barriers, to be run in the page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """A user of Airflow's pages."""

    driver: Chrome
    url: str

    def sees(self, look: Callable[[], Found], what: str) -> Found:
        """Wait until a look finds something, and return it."""
        found: list[Found] = []

        def is_there() -> bool:
            try:
                seen = look()
            except WebDriverException:  # not there yet, or redrawn in this moment
                return False
            if seen:
                found.append(seen)
            return bool(seen)

        is_seen = happened(is_there, within=WITHIN, pause=POLL_PERIOD)
        assert is_seen, f"{what} is not seen on {self.driver.current_url}:\n{self._text()}"
        return found[0]

    def _text(self) -> str:
        return self.driver.find_element(By.TAG_NAME, "body").text

    def one(self, css: str) -> WebElement:
        """Wait for an element that can be seen, and return it."""

        def look() -> WebElement | None:
            return next((e for e in self.driver.find_elements(By.CSS_SELECTOR, css) if e.is_displayed()), None)

        found = self.sees(look, css)
        assert found is not None
        return found

    def press(self, css: str) -> None:
        """Press a button, wherever on the page it is."""
        self.clicks(lambda: self.driver.find_elements(By.CSS_SELECTOR, css), css)

    def clicks(self, look: Callable[[], Sequence[WebElement]], what: str) -> None:
        """Click on the first of these elements that can be seen.

        A page may be redrawn between the look and the click, which then was none: it is looked for again.
        """

        def is_clicked() -> bool:
            element = next((one for one in look() if one.is_displayed()), None)
            if element is None:
                return False
            self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
            element.click()
            return True

        self.sees(is_clicked, what)

    def types(self, *keys: str) -> None:
        """Press keys, wherever the focus is."""
        ActionChains(self.driver).send_keys(*keys).perform()

    def reads(self, *texts: str) -> str:
        """Wait until all these texts can be read on the page, or in the frame, and return its whole text."""

        def read() -> str:
            text = self._text()
            return text if all(one in text for one in texts) else ""

        return self.sees(read, " and ".join(texts))

    def goes(self, path: str) -> None:
        """Open a page of Airflow."""
        self.driver.switch_to.default_content()
        self.driver.get(f"{self.url}{path}")

    def goes_to_task(self, dag: str, run_id: str, task: str, tab: str = "") -> None:
        """Open the page of a task of a run."""
        self.goes(f"/dags/{dag}/runs/{quote(run_id, safe='')}/tasks/{task}/{tab}")

    def logs_in(self, name: str, password: str) -> None:
        """Log in, and wait for the first page."""
        self.goes("/")
        self.one("input[name=username]").send_keys(name)
        self.one("input[name=password]").send_keys(password, Keys.ENTER)
        self.one("[data-testid=nav-dags-link]")

    # -- a form of Airflow's -------------------------------------------------------------------------------------

    def chooses(self, field: str, text: str) -> None:
        """Choose what begins with a text in one of the drop-down lists of a form."""
        box = "input[@role='combobox']"
        place = f"//input[@name='element_{field}']/ancestor::div[.//{box}][1]//{box}"
        self.clicks(lambda: self.driver.find_elements(By.XPATH, place), field)
        self.driver.switch_to.active_element.send_keys(text)

        def is_found() -> bool:
            options = self.driver.find_elements(By.CSS_SELECTOR, "[role=option]")
            texts = [one.text for one in options if one.is_displayed() and one.text]
            return bool(texts) and texts[0].startswith(text) and all(text in one for one in texts)

        self.sees(is_found, f"{text} first in the list of {field}")
        self.driver.switch_to.active_element.send_keys(Keys.ENTER)

    def writes(self, field: str, text: str) -> None:
        """Click into a field of a form, of one line or of many, and paste a text."""
        self.clicks(lambda: self.driver.find_elements(By.CSS_SELECTOR, _named(field)), field)
        self._pastes(field, text)

    def _pastes(self, field: str, text: str) -> None:
        # As users paste a run's name. Airflow 3.3's form drops every 51st of keys that come one right after another
        # ("Maximum update depth exceeded" of React).
        focused = self.driver.switch_to.active_element
        assert focused.get_attribute("name") == f"element_{field}", f"{field} has not the focus"
        self.driver.execute_cdp_cmd("Input.insertText", {"text": text})
        self.sees(lambda: focused.get_attribute("value") == text, f"{text!r} in {field}")

    # ------------------------------------------------------------------------------------------------------------

    def lacks(self, name: str) -> None:
        """Let pages that are opened from now on have no global of this name, whatever sets it."""
        source = f"Object.defineProperty(globalThis, '{name}', {{value: undefined}})"
        self.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": source})

    def enters_frame(self) -> None:
        """Look into the one frame of the page from now on."""
        self.driver.switch_to.frame(self.one("iframe"))

    def links(self) -> dict[str, str]:
        """Return where the links of the page lead, by their texts."""
        found = self.driver.find_elements(By.TAG_NAME, "a")
        return {one.text.strip(): str(one.get_attribute("href")) for one in found}

    def keeps_files(self, folder: Path) -> None:
        """Keep what the pages offer as files in a folder from now on."""
        self.driver.execute_cdp_cmd("Page.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(folder)})

    def prefers(self, theme: str) -> None:
        """Choose Airflow's theme, `light` or `dark`, for the pages that are opened from now on."""
        self.driver.execute_script("localStorage.setItem('theme', arguments[0])", theme)

    def finds_barriers(self, *within: str) -> list[str]:
        """Return what keeps some people from using the page, serious or worse, as axe-core finds it.

        Args:
            within: CSS selectors of the parts of the page to look at; those that are not there are left out.
        """
        self.driver.execute_script(AXE.read_text("utf-8"))
        found = self.driver.execute_async_script(
            """
            const [within, done] = arguments;
            const there = within.filter((css) => document.querySelector(css));
            axe.run({ include: there.map((css) => [css]) }, { resultTypes: ["violations"] }).then(
              ({ violations }) => done(violations.filter(({ impact }) => ["serious", "critical"].includes(impact))
                .flatMap(({ id, nodes }) => nodes.map((node) => `${id}: ${node.html} ${node.failureSummary}`))),
              (error) => done([String(error)]));
            """,
            list(within),
        )
        return [str(one) for one in found]

    def stands_still(self) -> None:
        """Wait until nothing on the page moves any more: a drawer that comes, a colour that fades in."""
        self.sees(
            lambda: self.driver.execute_script(
                "return document.getAnimations().every((one) => "
                "one.playState !== 'running' || one.effect.getComputedTiming().endTime === Infinity)"
            ),
            "a page that stands still",
        )

    def takes_picture(self, name: str) -> int:
        """Return the size of a picture of the page, in bytes; keep it, if pictures are wanted."""
        picture = self.driver.get_screenshot_as_png()
        folder = os.environ.get(PICTURES_VARIABLE)
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            (Path(folder) / f"{name}.png").write_bytes(picture)
        return len(picture)


@dataclass(slots=True)
class Clicks:
    """Counts how often a person clicks; what they type is not counted."""

    person: Person
    count: int = 0

    def on(self, by: str, what: str) -> None:
        """Click on the first element found so that can be seen, and count it."""
        self.person.clicks(lambda: self.person.driver.find_elements(by, what), what)
        self.count += 1


def _named(field: str) -> str:
    return f"input[name=element_{field}], textarea[name=element_{field}]"


@contextmanager
def person_at(url: str) -> Iterator[Person]:
    """Lend a browser without a login; it ends at the end, with its processes."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        raise AssertionError("these tests need chromium and chromedriver: apt-get install chromium chromium-driver")
    options = Options()
    options.binary_location = chromium
    for argument in (
        "--headless=new",
        "--no-sandbox",  # a container's root has no other way
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--hide-scrollbars",
        "--lang=en-US",
        f"--window-size={WIDTH},{HEIGHT}",
    ):
        options.add_argument(argument)
    chrome = Chrome(options=options, service=Service(driver))
    try:
        chrome.set_page_load_timeout(WITHIN)
        yield Person(driver=chrome, url=url)
    finally:
        chrome.quit()
