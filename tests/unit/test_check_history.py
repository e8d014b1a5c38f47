"""The independent checker: it holds what the program archived, and nothing that was changed."""

from __future__ import annotations

import ast
import gzip
import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import pytest

from airflow_kcr import check_history
from airflow_kcr.api.verdict import digest_of
from airflow_kcr.protocol.rules import Delivery
from airflow_kcr.protocol.targets import ToCheckpoint
from tests.contract.test_certificates_contract import certified
from tests.contract.test_closed_history import closed, lived
from tests.support.driver import Driver

Line = dict[str, Any]
PROGRAM: Final = Path(check_history.__file__)


def read(path: Path) -> list[Line]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def write(path: Path, lines: list[Line]) -> None:
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(check_history.text(line) + "\n" for line in lines)


def sealed(folder: Path) -> None:
    """Make all digests right again: what a forger would do."""
    previous = ""
    for path in sorted(folder.iterdir()):
        header, *lines = read(path)
        body = header["certificate"]
        content = "".join(check_history.text(line) + "\n" for line in lines)
        body["content"] = hashlib.sha256(content.encode()).hexdigest()
        events = [line for line in lines if "event" in line]
        if events:
            body["last_event"] = digest_of(events[-1])
        body["previous"] = header["previous"] = previous
        previous = header["digest"] = digest_of(body)
        write(path, [header, *lines])


def refused(folder: Path, digest: str | None = None) -> str:
    with pytest.raises(check_history.WrongHistory) as raised:
        check_history.check(folder, digest)
    return str(raised.value)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """The archive of a region that has been through resets, a rewind, a discarded batch and a batch across files."""
    driver = Driver(partitions=2, members=1)
    driver.up()
    member = driver.member(0)
    driver.process(width=10)
    driver.checkpoint("a")
    certified(driver)
    first = driver.start_batch(member, width=5)
    certified(driver)
    driver.finish_batch(first)
    driver.crash(member)
    driver.recover()
    driver.checkpoint("b")
    driver.process(width=4)
    driver.discard(driver.start_batch(member, width=3))
    driver.crash(member)
    driver.recover()
    certified(driver)
    driver.reset(ToCheckpoint(sequence=max(driver.region.offsets)), forced=True, request_id="back")
    driver.finish_reset()
    driver.process(width=6)
    driver.checkpoint("c")
    certified(driver)
    driver.process(width=2)
    driver.checkpoint("d")
    certified(driver)
    made = closed(driver, tmp_path)
    assert made.violations == ()
    assert len(made.archived) == 4
    return made.archived[0].parent


def places(document: object, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where the single values of a document are."""
    match document:
        case dict():
            for key, value in document.items():
                yield from places(value, (*path, key))
        case list():
            for index, value in enumerate(document):
                yield from places(value, (*path, index))
    if path:
        yield path


def changed(line: Line, path: tuple[Any, ...]) -> Line:
    """Return a line of which one value is another one of its kind."""
    line = deepcopy(line)
    *parents, last = path
    at: Any = line
    for key in parents:
        at = at[key]
    match at[last]:
        case bool() as value:
            at[last] = not value
        case int() as value:
            at[last] = value + 1
        case str() as value:
            at[last] = f"{value}x"
        case None:
            at[last] = 1
        case list() as value:
            at[last] = [*value, 1]
        case dict() as value:
            at[last] = {**value, "x": 1}
    return line


def test_it_holds_what_the_program_archived(archive: Path) -> None:
    told = check_history.check(archive)
    newest = read(sorted(archive.iterdir())[-1])[0]["digest"]
    assert told.startswith("region flights: 4 certificates hold")
    assert told.endswith(newest)
    assert check_history.check(archive, newest) == told


def test_it_runs_by_itself_and_imports_nothing_of_the_package(archive: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone.py"
    alone.write_text(PROGRAM.read_text())
    call = [sys.executable, "-I", str(alone), str(archive)]
    done = subprocess.run(call, capture_output=True, text=True, check=False, timeout=500)
    assert (done.returncode, done.stdout.strip()) == (0, check_history.check(archive))
    files = sorted(archive.iterdir())
    files[1].unlink()
    done = subprocess.run(call, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 1
    assert "00000002" in done.stdout
    wrong = subprocess.run(call[:-1], capture_output=True, text=True, check=False, timeout=500)
    assert wrong.returncode == 2
    tree = ast.parse(PROGRAM.read_text())
    imported = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported <= sys.stdlib_module_names
    assert len(PROGRAM.read_text().splitlines()) < 300


def test_every_single_field_that_is_changed_is_found(archive: Path) -> None:
    tried = 0
    for path in sorted(archive.iterdir()):
        lines = read(path)
        content = path.read_bytes()
        for index, line in enumerate(lines):
            for place in places(line):
                write(path, [*lines[:index], changed(line, place), *lines[index + 1 :]])
                assert path.name in refused(archive), (index, place)
                tried += 1
        path.write_bytes(content)
    assert tried > 1000
    check_history.check(archive)


def test_every_field_that_is_missing_is_found(archive: Path) -> None:
    path = sorted(archive.iterdir())[-1]
    lines = read(path)
    for index, line in enumerate(lines):
        for name in line:
            less = {key: value for key, value in line.items() if key != name}
            write(path, [*lines[:index], less, *lines[index + 1 :]])
            assert path.name in refused(archive), (index, name)


@pytest.mark.parametrize("is_sealed", [False, True])
def test_lines_that_are_missing_doubled_or_swapped_are_found(archive: Path, *, is_sealed: bool) -> None:
    before = {path: path.read_bytes() for path in archive.iterdir()}
    for path in sorted(before):
        header, *lines = read(path)
        for index, line in enumerate(lines):
            after = lines[index + 1 : index + 2]
            made_of = [[*lines[:index], *lines[index + 1 :]], [*lines[:index], line, *lines[index:]]]
            if after and not is_sealed:  # an end may stand after the next event as well, which changes no sum
                made_of.append([*lines[:index], *after, line, *lines[index + 2 :]])
            for made in made_of:
                write(path, [header, *made])
                if is_sealed:
                    sealed(archive)
                refused(archive)
                for each, content in before.items():
                    each.write_bytes(content)


def test_files_that_are_missing_doubled_or_swapped_are_found(archive: Path, tmp_path: Path) -> None:
    files = sorted(archive.iterdir())
    newest = read(files[-1])[0]["digest"]
    contents = [path.read_bytes() for path in files]

    def put(*order: int) -> None:
        for path in archive.iterdir():
            path.unlink()
        for number, index in enumerate(order, 1):
            (archive / f"{number:08}.jsonl.gz").write_bytes(contents[index])

    for order in [(1, 2, 3), (0, 2, 3), (0, 0, 1, 2, 3), (1, 0, 2, 3), (0, 1, 3, 2), (0, 1, 2, 3, 3), ()]:
        put(*order)
        refused(archive)
    put(0, 1, 2)
    assert newest in refused(archive, newest)
    put(0, 1, 2, 3)
    check_history.check(archive, newest)
    files[1].rename(archive / "00000009.jsonl.gz")
    assert "00000002" in refused(archive)


def test_a_file_that_is_cut_off_or_longer_is_found(archive: Path) -> None:
    path = sorted(archive.iterdir())[-1]
    content = path.read_bytes()
    for made in (content[:-1], content[: len(content) // 2], b"", content + content, content + b"more"):
        path.write_bytes(made)
        assert path.name in refused(archive)


FORGED: Final[Mapping[str, Callable[[Line], bool]]] = {
    "a range is longer": lambda line: "begin" in line and _longer(line["ranges"][0], 4, 1),
    "a range begins later": lambda line: "begin" in line and _longer(line["ranges"][0], 3, 1),
    "a batch was not done": lambda line: line.get("outcome") == "done" and _is(line, "outcome", "discarded"),
    "a discarded batch was done": lambda line: line.get("outcome") == "discarded" and _is(line, "outcome", "done"),
    "a checkpoint lies beyond": lambda line: (
        line.get("kind") == "CheckpointCompleted" and _beyond(line["body"]["offsets"])
    ),
    "a reset went further back": lambda line: line.get("kind") == "ResetBegun" and _back(line["body"]["seek"]),
    "a batch is of another epoch": lambda line: "begin" in line and _longer(line, "epoch", 1),
    "an event is of another time line": lambda line: line.get("kind") == "ResetBegun" and _longer(line, "timeline", 5),
}


def _longer(document: Any, key: Any, more: int) -> bool:  # noqa: ANN401 (JSON)
    document[key] += more
    return True


def _is(line: Line, key: str, value: str) -> bool:
    line[key] = value
    return True


def _beyond(offsets: Line) -> bool:
    offsets["g"]["t"]["0"] += 1
    return True


def _back(seek: Line) -> bool:
    entry = seek.get("g", {}).get("t", {}).get("0", {})
    if not entry.get("offset"):
        return False
    entry["offset"] -= 1
    return True


@pytest.mark.parametrize("forgery", FORGED)
def test_what_is_forged_with_all_digests_made_right_is_found_by_what_it_adds_up_to(archive: Path, forgery: str) -> None:
    before = {path: path.read_bytes() for path in archive.iterdir()}
    tried = 0
    for path in sorted(before):
        lines = read(path)
        for line in lines[1:]:
            original = deepcopy(line)
            if FORGED[forgery](line):
                tried += 1
                write(path, lines)
                sealed(archive)
                refused(archive)
                for each, content in before.items():
                    each.write_bytes(content)
            line.clear()
            line.update(original)
    assert tried > 0


TOTALS: Final = ("batches", "outcomes", "open", "partitions", "region_state", "upto", "last_event")


def test_every_total_of_a_certificate_is_derived_from_the_lines(archive: Path) -> None:
    path = sorted(archive.iterdir())[-1]
    lines = read(path)
    tried = 0
    for place in places(lines[0]["certificate"]):
        if place[0] in TOTALS:
            made = changed(lines[0], ("certificate", *place))
            made["upto"] = made["certificate"]["upto"]
            made["digest"] = digest_of(made["certificate"])
            write(path, [made, *lines[1:]])
            assert path.name in refused(archive), place
            tried += 1
    assert tried > 20


@pytest.mark.parametrize("delivery", list(Delivery))
@pytest.mark.parametrize("seed", range(8))
def test_it_holds_whatever_a_region_went_through(tmp_path: Path, seed: int, delivery: Delivery) -> None:
    driver = Driver(partitions=3, members=2, delivery=delivery)
    lived(driver, 100 + seed)
    folder = closed(driver, tmp_path).archived[0].parent
    check_history.check(folder)
