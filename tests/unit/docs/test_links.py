"""What the documentation names is there: links, the words of the glossary, and the jars that the code downloads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from airflow_kcr.embedded import jars
from airflow_kcr.spark import session
from tests.support.docs_pages import BLOCK, DOCS, TOP, pages
from tests.support.vocabulary import AVOIDED, words_in

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)

COORDINATES = re.compile(r"\b(?:org|io)(?:\.\w+)+:[\w.-]+:\d[\w.]*\b")

OF_OTHERS = {"beside-other-tools": {"savepoint", "snapshot"}, "write-to-iceberg": {"snapshot"}}
"""Pages that speak of what others call so."""


def prose(path: Path) -> str:
    return FENCED.sub("", path.read_text(encoding="utf-8"))


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as Markdown renderers make them."""
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in HEADING.findall(prose(path))
    }


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.stem)
def test_every_relative_link_resolves(path: Path) -> None:
    broken = []
    for link in LINK.findall(prose(path)):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


PACKAGE = TOP / "airflow_kcr"
CODE = re.compile(r"`(?:airflow_kcr\.)?((?:api|hooks|protocol|runtime|sinks|spec|store|triggers)(?:\.\w+)+)`")

FILE = re.compile(r"`((?:airflow_kcr|dags_example|tests)/[\w./-]+|pyproject\.toml)`")


def is_in_the_package(name: str) -> bool:
    """Whether a dotted name is a module of the package, or a name in one."""
    module, parts = PACKAGE, name.split(".")
    while parts and (module / parts[0]).is_dir():
        module /= parts.pop(0)
    if parts and (module / f"{parts[0]}.py").exists():
        module /= f"{parts.pop(0)}.py"
    source = module if module.is_file() else module / "__init__.py"
    return not parts or bool(re.search(rf"\b{parts[0]}\b", source.read_text(encoding="utf-8")))


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.stem)
def test_every_place_in_the_code_that_a_page_names_is_there(path: Path) -> None:
    names = CODE.findall(path.read_text(encoding="utf-8"))
    assert [name for name in names if not is_in_the_package(name)] == []


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.stem)
def test_every_file_that_a_page_names_is_there(path: Path) -> None:
    names = FILE.findall(path.read_text(encoding="utf-8"))
    assert [name for name in names if not (TOP / name).exists()] == []


def test_every_page_can_be_reached_from_the_index() -> None:
    seen: set[Path] = set()
    todo = [DOCS / "index.md"]
    while todo:
        page = todo.pop()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        names = [link.partition("#")[0] for link in LINK.findall(prose(page)) if not re.match(r"[a-z]+:", link)]
        todo += [(page.parent / name).resolve() for name in names if name]
    assert set(pages()) - {TOP / "README.md"} <= seen


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.stem)
def test_a_page_uses_the_words_of_the_glossary(path: Path) -> None:
    text = BLOCK.sub("", prose(path)).lower()
    used = words_in(text, AVOIDED, but=OF_OTHERS.get(path.stem, set()))
    assert used == []


def test_the_glossary_defines_each_term_once() -> None:
    text = (DOCS / "glossary.md").read_text(encoding="utf-8")
    terms = re.findall(r"\*\*([\w ]+)\*\*", text)
    assert sorted(terms) == sorted(set(terms))
    needed = (
        "region member offset assignment claim batch checkpoint sequence timeline current epoch contribution "
        "merge quiesced "
        "boundary retire ledger"
    )
    assert {*needed.split(), "resume point", "seek map", "restore point", "foreign consumer", "desired state"} <= set(
        terms
    )


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.stem)
def test_a_page_is_about_no_machine(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"/(work|root|home|tmp|usr)/", text)
    assert str(TOP) not in text


def test_a_page_names_no_other_version_of_a_jar_than_the_code() -> None:
    lines = ("4.0", "4.1", "4.2")
    named = {
        session.POSTGRES_DRIVER,
        *map(session.connector_for, lines),
        *jars.KAFKA_BROKER.coordinates.split(","),
    }
    told = {coordinates for path in pages() for coordinates in COORDINATES.findall(path.read_text(encoding="utf-8"))}
    assert session.POSTGRES_DRIVER in told
    assert told <= named


REFERENCE = re.compile(r"(?:[Ss]ee|What) `([a-z_]+)\.\w")
"""A module, before the name of something in it."""


def test_the_modules_that_docstrings_refer_to_are_there() -> None:
    files = [*PACKAGE.rglob("*.py")]
    known = {path.stem for path in files} | {path.parent.name for path in files}
    named = {module for path in files for module in REFERENCE.findall(path.read_text(encoding="utf-8"))}
    assert named - known == set()
