"""Sinks of a user's own in a spec: the function that makes one, and what it is told."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from airflow_kcr.confidential import secrets_in
from airflow_kcr.kafka_settings import broken_references
from airflow_kcr.spec.findings import Finding, Path

_FACTORY: Final = re.compile(r"\S.*:[A-Za-z_][A-Za-z0-9_.]*")


def factory_findings(value: str | None, path: Path) -> Iterator[Finding]:
    """Yield what is wrong with the name of a function that makes a sink."""
    if value is None:
        yield Finding(path, "is missing; write the function that makes the sink: module:function")
    elif not _FACTORY.fullmatch(value) or "\0" in value:
        yield Finding(path, f"{value!r} names no function: write module:function or path/to/file.py:function")


def options_findings(options: Mapping[str, str], path: Path) -> Iterator[Finding]:
    """Yield what is wrong with what a sink is told; no value is quoted, it may be a secret."""
    for name in broken_references(options):
        yield Finding((*path, name), "has a '${' that begins no reference; write ${NAME}: letters, digits and '_'")
    for name in secrets_in(options):
        yield Finding(
            (*path, name),
            "is a secret, and specs are stored and shown: write ${NAME} and set NAME in the environment",
        )
