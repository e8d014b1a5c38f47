"""The JSON of everything that leaves the process, to the byte: names, their order, and how values are written."""

from __future__ import annotations

import pytest

from tests.support.documents import GOLDEN, golden

WRITTEN = golden()


def test_each_file_of_documents_is_of_a_kind_that_there_is() -> None:
    assert {file.stem for file in GOLDEN.iterdir()} == WRITTEN.keys()


@pytest.mark.parametrize("kind", WRITTEN)
def test_a_document_is_written_as_before(kind: str) -> None:
    assert WRITTEN[kind].splitlines() == (GOLDEN / f"{kind}.jsonl").read_text(encoding="utf-8").splitlines()
