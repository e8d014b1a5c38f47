from __future__ import annotations

import ast
import inspect
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from airflow_kcr import __version__

TOP = Path(__file__).parents[2]
ALLOWED_AT_THE_TOP = {
    "LICENSE",
    "README.md",
    "airflow_kcr",
    "dags_example",
    "docs",
    "pyproject.toml",
    "tests",
}


def readme_test_command() -> str:
    readme = (TOP / "README.md").read_text(encoding="utf-8")
    found = re.search(r"^## Tests$.*?^```(?:console|shell|bash|sh)\n(.+?)\n```$", readme, re.MULTILINE | re.DOTALL)
    assert found, "README.md has no section 'Tests' with a command"
    return found[1]


def test_ci_runs_the_readmes_test_command() -> None:
    command = readme_test_command()
    assert "\n" not in command, "one command, not several"
    assert command in (TOP / ".ci" / "run").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("name", ["run", "check"])
def test_ci_scripts_can_be_started(name: str) -> None:
    assert os.access(TOP / ".ci" / name, os.X_OK)


@pytest.fixture(scope="module")
def project_files() -> frozenset[str]:
    """Tracked files and new ones, but not what .gitignore names."""
    if shutil.which("git") is None or not (TOP / ".git").exists():
        pytest.skip("not a git checkout, so what belongs to the project is not known")
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=TOP,
        check=True,
        capture_output=True,
        text=True,
    )
    return frozenset(name for name in listing.stdout.splitlines() if (TOP / name).exists())


def test_the_top_level_stays_small(project_files: frozenset[str]) -> None:
    names = {name.partition("/")[0] for name in project_files}
    assert {name for name in names if not name.startswith(".")} <= ALLOWED_AT_THE_TOP


def test_the_changelog_begins_with_the_version_of_the_package() -> None:
    changelog = (TOP / "docs" / "changelog.md").read_text(encoding="utf-8")
    assert re.findall(r"^## \[(.+?)\]", changelog, re.MULTILINE)[0] == __version__


def test_pip_takes_no_pandas_that_spark_does_not_fully_support() -> None:
    from pyspark.sql.pandas import utils

    warned = re.search(r"does not yet fully support pandas >= ([\d.]*\d)", inspect.getsource(utils))
    assert warned, "PySpark warns of no pandas any more: the pin can go"
    extras = tomllib.loads((TOP / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    pins = [Requirement(one).specifier for one in extras["spark"] if Requirement(one).name == "pandas"]
    assert [warned[1] in pin for pin in pins] == [False]


@pytest.fixture(scope="module")
def source_distribution(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", str(folder)]
    subprocess.run(command, cwd=TOP, check=True, capture_output=True, timeout=60)
    (archive,) = folder.glob("*.tar.gz")
    return archive


def test_the_source_distribution_has_what_a_clone_has(project_files: frozenset[str], source_distribution: Path) -> None:
    with tarfile.open(source_distribution) as files:
        held = {name.partition("/")[2] for name in files.getnames()}
    assert held - {"PKG-INFO"} == project_files


def test_what_a_package_index_shows_links_to_no_file_beside_it(source_distribution: Path) -> None:
    with tarfile.open(source_distribution) as files:
        (name,) = (name for name in files.getnames() if name.endswith("/PKG-INFO"))
        packed = files.extractfile(name)
        assert packed is not None
        shown = packed.read().decode()
    assert "Description-Content-Type: text/markdown" in shown
    assert "Your own Kafka and Postgres: from `pip install` to a running region" in shown
    assert [target for target in re.findall(r"\]\(([^)]*)\)", shown) if not re.match("https?://", target)] == []


def test_the_cases_of_a_test_come_in_one_order() -> None:
    """Each process that runs tests collects them anew, and a set of types has another order in each."""
    unordered = [
        f"{path.relative_to(TOP)}:{case.lineno}"
        for path in sorted((TOP / "tests").rglob("*.py"))
        if "parametrize(" in (text := path.read_text(encoding="utf-8"))
        for case in _unordered_cases(ast.parse(text))
    ]
    assert unordered == []


@pytest.mark.parametrize(
    ("cases", "told"),
    [("{1, 2}", 1), ("[*A]", 1), ("A", 1), ("A - {1}", 1), ("sorted(A)", 0), ("[*sorted(A)]", 0), ("[A, {1}]", 0)],
)
def test_a_set_of_cases_is_found(cases: str, told: int) -> None:
    text = f"A = {{1, 2}}\n@pytest.mark.parametrize('one', {cases})\ndef test_one(one): ..."
    assert len(list(_unordered_cases(ast.parse(text)))) == told


def _unordered_cases(module: ast.Module) -> Iterator[ast.expr]:
    named = {
        target.id: node.value
        for node in module.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for call in ast.walk(module):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "parametrize":
            yield from (call.args[1],) if _is_unordered(call.args[1], named) else ()


def _is_unordered(cases: ast.expr, named: Mapping[str, ast.expr]) -> bool:
    match cases:
        case ast.Set() | ast.SetComp() | ast.Call(func=ast.Name(id="set" | "frozenset")):
            return True
        case ast.Name(id=name):
            return name in named and _is_unordered(named[name], {})
        case ast.BinOp(left=left, right=right):
            return _is_unordered(left, named) or _is_unordered(right, named)
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return any(_is_unordered(e.value, named) for e in elements if isinstance(e, ast.Starred))
        case _:
            return False


def test_what_every_test_may_use_needs_no_extra() -> None:
    # The core is tried with each Python in an environment without them (`tests.matrix`).
    extras = ("airflow", "deltalake", "moto", "py4j", "pyarrow", "pyiceberg", "pyspark")
    code = f"import sys; sys.modules.update(dict.fromkeys({extras}, None)); import tests.conftest"
    done = subprocess.run([sys.executable, "-c", code], cwd=TOP, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
