"""Reads a spec from its file."""

from __future__ import annotations

from pathlib import Path

from airflow_kcr.errors import SpecError
from airflow_kcr.spec.findings import path_text
from airflow_kcr.spec.model import RegionSpec, decoded
from airflow_kcr.spec.yaml_text import read_yaml


def parse(text: str) -> RegionSpec:
    """Return the spec that a YAML text says.

    Raises:
        SpecError: with everything that is wrong, each with its path and line; for what is not YAML at all, with line
            and column.
    """
    read = read_yaml(text)
    lines = {path_text(path): line for path, line in read.lines.items()}
    return decoded(read.value, RegionSpec, lines, [(path_text(f.path), f.text) for f in read.refused])


def load(path: str | Path) -> RegionSpec:
    """Return the spec in a YAML file, in UTF-8.

    Raises:
        SpecError: as for `parse`, or the file can't be read.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise SpecError(((str(path), f"can't be read: {error.strerror}"),)) from error
    except UnicodeDecodeError as error:
        raise SpecError(((str(path), f"is not UTF-8: byte {error.start}"),)) from None
    return parse(text)
