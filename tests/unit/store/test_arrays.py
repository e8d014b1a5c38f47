"""What is written as an array: the text of one, of which nothing is kept."""

from __future__ import annotations

import gc
import sys

import pytest

from airflow_kcr.store.postgres.statements import array


@pytest.mark.parametrize(
    ("values", "written"),
    [
        ([1, None, 3], "{1,NULL,3}"),
        (["a", None, "a", 'say "b\\c"'], '{"a",NULL,"a","say \\"b\\\\c\\""}'),
        (["NULL", ""], '{"NULL",""}'),
        ([None], "{NULL}"),
        ([], "{}"),
        ([True], [True]),
        ([1, "a"], [1, "a"]),
    ],
)
def test_an_array_is_written_as_text_where_that_is_simple(values: list[object], written: object) -> None:
    assert array(values) == written


def test_nothing_is_kept_of_what_is_written_once() -> None:
    array(["batch"])
    gc.collect()
    before = sys.getallocatedblocks()
    for number in range(5_000):
        array([f"batch-{number}"])
    gc.collect()
    assert sys.getallocatedblocks() - before < 1_000
