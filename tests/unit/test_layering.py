from __future__ import annotations

import ast
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp

import airflow_kcr

PROTOCOL = Path(airflow_kcr.__file__).parent / "protocol"
OURS = ("airflow_kcr.protocol", "airflow_kcr.errors")
# Standard library all the same, but each of them is a way to the world outside, which belongs behind a port.
IMPURE = {"asyncio", "logging", "multiprocessing", "os", "random", "socket", "subprocess", "threading", "time"}


def imported_modules(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "airflow_kcr":
            names.update(f"airflow_kcr.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names.add(node.module)
    return names


def is_allowed(module: str) -> bool:
    top = module.partition(".")[0]
    ours = any(module == name or module.startswith(f"{name}.") for name in OURS)
    return ours or (top in sys.stdlib_module_names and top not in IMPURE)


def test_the_protocol_imports_only_itself_the_errors_and_the_pure_standard_library() -> None:
    modules = sorted(PROTOCOL.rglob("*.py"))
    assert modules
    offences = {
        f"{path.relative_to(PROTOCOL)}: {module}"
        for path in modules
        for module in imported_modules(path)
        if not is_allowed(module)
    }
    assert offences == set()


def test_no_module_is_needed_by_what_it_needs() -> None:
    graph = grimp.build_graph("airflow_kcr")  # with what only types need, and what a function imports when it is called
    needs = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as circle:
        raise AssertionError(" -> ".join(reversed(circle.args[1]))) from None


ADMIN_CLIENTS = {
    "kafka/calls.py",  # imported by the child of `kafka.admin_process` alone, as import-linter sees to
    "kafka/questions.py",  # what that child is asked
    "embedded/flights/producer.py",  # a process of the demo, which makes the topic that it fills and hosts no member
}
"""What may name the class. Around an outage librdkafka can end the process that made one, with the members in it. The
commands, the API and the triggers host none, and ask through `kafka.admin_process` all the same."""


def test_an_admin_client_is_made_where_no_member_lives() -> None:
    package = PROTOCOL.parent
    named = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (isinstance(node, ast.ImportFrom) and "AdminClient" in {alias.name for alias in node.names})
        or (isinstance(node, ast.Attribute) and node.attr == "AdminClient")
    }
    assert named == ADMIN_CLIENTS


TWICE = {"Region", "Target"}
"""What a program drives (`airflow_kcr.Region`), and what the rules decide about: both are the region to readers.

Where a reset goes, and where a sink writes to.
"""


def test_a_public_class_name_is_defined_once() -> None:
    defined: dict[str, list[str]] = {}
    package = PROTOCOL.parent
    for path in sorted(package.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                defined.setdefault(node.name, []).append(str(path.relative_to(package)))
    assert {name: places for name, places in defined.items() if len(places) > 1 and name not in TWICE} == {}
