"""The pages become a site without a warning: links, headings, and the docstrings of the public modules."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.docs_pages import DOCS

WITHIN = 500


@pytest.mark.long
def test_the_pages_make_a_site_without_a_warning(tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", DOCS, tmp_path],
        capture_output=True,
        text=True,
        timeout=WITHIN,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    assert all((tmp_path / page.relative_to(DOCS)).with_suffix(".html").exists() for page in DOCS.rglob("*.md"))
    listed = re.findall(r"^\|[^|]*\| `(airflow_kcr\.[\w.]+)` \|", (DOCS / "reference/python.md").read_text(), re.M)
    shown = (tmp_path / "reference/python.html").read_text(encoding="utf-8")
    assert len(listed) > 10
    assert [name for name in listed if f'id="module-{name}"' not in shown] == []
    assert 'id="airflow_kcr.operators.checkpoint.KcrDrainOperator"' in shown
