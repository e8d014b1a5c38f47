"""What docstrings refer to has to be there."""

from __future__ import annotations

import re
from pathlib import Path

import airflow_kcr

PACKAGE = Path(airflow_kcr.__file__).parent

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
