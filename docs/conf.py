"""How the pages become a site: `sphinx-build -W docs site`, which needs no network.

The pages are plain Markdown that reads well where it lies. What only a site needs is added while it is built: the list
of pages, and the reference of the modules that `reference/python.md` lists, from their docstrings.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from airflow_kcr import __version__

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "airflow-kcr"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = f"airflow-kcr {version}"
html_show_copyright = False

myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_typehints = "description"

_SECTIONS: Final = {
    "Start": "tutorial",
    "Understand": "explanation",
    "Do": "how-to",
    "Look up": "reference",
    "Decisions": "explanation/decisions",
}
_CONTENTS: Final = """
```{toctree}
:hidden:
:glob:
:caption: %s

%s/*
```
"""
_LAST: Final = """
```{toctree}
:hidden:

glossary
changelog
```
"""
_LISTED: Final = re.compile(r"^\|[^|]*\| `(airflow_kcr\.[\w.]+)` \|", re.MULTILINE)
_CODE: Final = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_ANNEX: Final = re.compile(r"\[([^\]]*)\]\((?:\.\./)+(tests/annex/[^)#]*)[^)]*\)")
"""A link to a page for people who change the project, which a site leaves out."""

_MODULE: Final = """
### %s

```{eval-rst}
.. automodule:: %s
   :members:
```
"""


def setup(app: Sphinx) -> None:
    """Add what only a site needs; Sphinx calls it."""
    app.connect("source-read", _completed)
    # Before napoleon, which takes the colon in `module:function` for the end of a type.
    app.connect("autodoc-process-docstring", _with_code, priority=400)


def _completed(app: Sphinx, page: str, source: list[str]) -> None:
    source[0] = _ANNEX.sub(r"\1 (`\2`)", source[0])
    if page == "index":
        source[0] += "".join(_CONTENTS % section for section in _SECTIONS.items()) + _LAST
    if page == "reference/python":
        source[0] += "\n## Each name, from its docstring\n" + "".join(
            _MODULE % (name, name) for name in _LISTED.findall(source[0])
        )


def _with_code(app: Sphinx, what: str, name: str, of: object, options: object, lines: list[str]) -> None:
    lines[:] = [_CODE.sub(r"``\1``", line) for line in lines]
