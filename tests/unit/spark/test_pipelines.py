from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

from airflow_kcr.errors import PipelineUnusable
from airflow_kcr.spark.pipelines import imports_of, load_pipeline

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def same_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and "site-packages" not in str(sys.modules[name].__file__):
            del sys.modules[name]


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dedent(text))
    return path


def refused(name: str) -> str:
    with pytest.raises(PipelineUnusable) as caught:
        load_pipeline(name)
    return caught.value.message


def test_a_function_of_a_file_is_found_with_its_siblings(tmp_path: Path) -> None:
    write(tmp_path, "kcr_sibling.py", "NAME = 'sibling'\n")
    path = write(
        tmp_path,
        "kcr_job.py",
        """
        import kcr_sibling
        def process(batch, context):
            return kcr_sibling.NAME
        """,
    )
    assert load_pipeline(f"{path}:process")(None, None) == "sibling"  # type: ignore[arg-type]


def test_members_of_one_process_load_one_file_once(tmp_path: Path) -> None:
    path = write(tmp_path, "kcr_once.py", "def process(batch, context): ...\n")
    assert load_pipeline(f"{path}:process") is load_pipeline(f"{path}:process")


def test_a_function_of_a_file_is_sent_to_executors_as_it_is(tmp_path: Path) -> None:
    from pyspark import cloudpickle

    write(tmp_path, "kcr_near.py", "def twice(x): return 2 * x\n")
    path = write(
        tmp_path,
        "kcr_sent.py",
        """
        import kcr_near
        def process(batch, context): ...
        def on_executor(x): return kcr_near.twice(x)
        """,
    )
    load_pipeline(f"{path}:process")
    sent = cloudpickle.dumps(sys.modules["kcr_sent"].on_executor)  # type: ignore[no-untyped-call]
    del sys.modules["kcr_sent"], sys.modules["kcr_near"]
    sys.path.remove(str(tmp_path))
    assert cloudpickle.loads(sent)(21) == 42


def test_a_module_is_found_in_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "kcr_jobs/__init__.py", "")
    write(tmp_path, "kcr_jobs/flights.py", "def process(batch, context): ...\n")
    monkeypatch.chdir(tmp_path)
    assert load_pipeline("kcr_jobs.flights:process").__name__ == "process"


def test_a_callable_object_and_a_default_argument_are_pipelines(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "kcr_objects.py",
        """
        class Job:
            def __call__(self, batch, context): ...
            def method(self, batch, context): ...
        job = Job()
        def process(batch, context, *, table="flights"): ...
        """,
    )
    for name in ("job", "job.method", "process"):
        load_pipeline(f"{path}:{name}")


@pytest.mark.parametrize("name", ["process", "module:", ":process", "file.py"])
def test_what_is_no_name_is_told(name: str) -> None:
    assert "write module:function or path/to/file.py:function" in refused(name)


def test_a_missing_file_is_told_with_its_full_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert f"there is no file {tmp_path / 'jobs' / 'a.py'}" in refused("jobs/a.py:process")


def test_a_missing_module_is_told_with_what_to_do_then_where_was_looked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    message = refused("kcr_nowhere.flights:process")
    first, *looked = message.splitlines()
    assert "there is no module 'kcr_nowhere'; put it on PYTHONPATH, start from its folder, or name its file" in first
    assert str(tmp_path) in "".join(looked)


def test_a_module_that_a_pipeline_misses_is_told_as_such(tmp_path: Path) -> None:
    path = write(tmp_path, "kcr_misses.py", "import kcr_not_there\ndef process(batch, context): ...\n")
    message = refused(f"{path}:process")
    assert "ModuleNotFoundError: No module named 'kcr_not_there'" in message
    assert f"({path}, line 1)" in message


def test_a_failing_import_is_told_with_its_line_and_can_be_tried_again(tmp_path: Path) -> None:
    path = write(tmp_path, "kcr_fails.py", "x = 1\nx / 0\n")
    for _ in range(2):
        message = refused(f"{path}:process")
        assert "ZeroDivisionError: division by zero" in message
        assert f"({path}, line 2)" in message


def test_a_syntax_error_is_told_with_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, "kcr_syntax.py", "def process(batch, context)\n")
    assert f"({path}, line 1)" in refused(f"{path}:process")


def test_a_file_named_like_an_imported_module_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "json.py", "def process(batch, context): ...\n")
    message = refused(f"{path}:process")
    assert "another module named 'json' is imported already" in message
    assert "give the file another name" in message


def test_a_missing_function_is_told_with_those_that_there_are(tmp_path: Path) -> None:
    path = write(tmp_path, "kcr_other.py", "from os import getpid\ndef proces(batch, context): ...\n")
    message = refused(f"{path}:process")
    assert "has no 'process'" in message
    assert message.endswith("its functions are: proces")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("process = 1", "is a int, not a function"),
        ("class process:\n    def __init__(self, a, b): ...", "is a class, not a function"),
        ("async def process(batch, context): ...", "is an async function"),
        ("async def process(batch, context):\n    yield 1", "is an async generator"),
        ("def process(batch, context):\n    yield batch", "is a generator"),
        ("class P:\n    async def __call__(self, b, c): ...\nprocess = P()", "is an async function"),
        ("def process(batch): ...", "it is      def process(batch)"),
        ("def process(batch, context, table): ...", "missing a required argument: 'table'"),
        ("def process(*, batch, context): ...", "it is      def process(*, batch, context)"),
        ("def process(): ...", "it is      def process()"),
    ],
)
def test_what_can_not_be_called_as_a_pipeline_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = write(tmp_path, "kcr_wrong.py", text + "\n")
    message = refused(f"{path}:process")
    assert said in message
    assert "def process(batch: DataFrame, context: BatchContext) -> None" in message


# -- what a module imports ---------------------------------------------------------------------------------------------


def pipeline(batch: object, context: object) -> None:
    pass


def test_what_a_pipeline_s_module_imports_is_known() -> None:
    assert {"pytest", "sys"} <= set(imports_of(pipeline))


def test_a_pipeline_without_a_module_imports_nothing() -> None:
    assert imports_of(partial(pipeline)) == ()
