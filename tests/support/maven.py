"""Jars of a Maven repository that have no coordinates of their own for Ivy, or not beside others of their name."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path

from airflow_kcr.embedded import jars
from airflow_kcr.spark.launch import locked


def fetched(name: str, paths: Iterable[str]) -> Iterator[Path]:
    """Yield jars, having fetched each once.

    Args:
        name: of the folder that they are kept in.
        paths: of the jars in the repository.
    """
    folder = jars.home() / "jars" / name
    folder.mkdir(parents=True, exist_ok=True)
    late = AssertionError(f"another process has been fetching into {folder} for too long")
    with locked(folder / "lock", within=jars.DOWNLOAD_WITHIN, late=lambda: late):
        for path in paths:
            jar = folder / Path(path).name
            if not jar.exists():
                draft = jar.with_suffix(".draft")
                urllib.request.urlretrieve(f"{jars.repository().rstrip('/')}/{path}", draft)
                draft.rename(jar)
            yield jar
