"""File sinks of a spec: what a folder and a size have to be."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from airflow_kcr.kafka_settings import broken_references
from airflow_kcr.spec.findings import Finding, Path

LARGEST_MIB: Final = 1_048_576
"""A file of a tebibyte is nobody's aim."""

_REFERENCE: Final = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}")
_PATTERNS: Final = frozenset("?#*{}[]\\")
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*")


def path_findings(value: str | None, path: Path) -> Iterator[Finding]:
    """Yield what is wrong with a sink's folder; a key of an object store in it is never quoted."""
    if value is None:
        yield Finding(path, "is missing; write the folder of this sink: /folder, or s3a://bucket/folder")
        return
    if broken_references({"path": value}):
        yield Finding(path, "has a '${' that begins no reference; write ${NAME}: letters, digits and '_'")
        return
    plain = _REFERENCE.sub("0", value)
    try:
        parts = urlsplit(plain)
        secret = parts.password is not None
    except ValueError:
        parts, secret = None, False
    if parts is None or not _is_folder(plain, parts.scheme, parts.netloc, parts.path):
        yield Finding(
            path, "is no folder: write an absolute path, or a URI such as s3a://bucket/folder or hdfs://host/folder"
        )
    elif secret:
        yield Finding(
            path,
            "holds a key, and specs are stored and shown; give it to Spark, as spark.hadoop.fs settings",
        )
    elif set(plain) & _PATTERNS:
        yield Finding(path, "has one of ?#*{}[] or a backslash in it, which mean something else to Spark")


def _is_folder(value: str, scheme: str, place: str, folder: str) -> bool:
    if "\0" in value or ".." in folder.split("/") or not folder.strip("/ "):
        return False
    if not scheme:
        # A reference stands for anything: a bucket, or the beginning of a path.
        return value.startswith(("/", "0")) and not place
    return bool(_SCHEME.fullmatch(scheme)) and folder.startswith("/") and (bool(place) or scheme in {"file", "hdfs"})


def size_findings(value: int | None, path: Path) -> Iterator[Finding]:
    """Yield what is wrong with the size of a checkpoint's files."""
    if value is not None and not 0 <= value <= LARGEST_MIB:
        yield Finding(path, f"is {value}; it must be from 0 (small files stay as they are) to {LARGEST_MIB} MiB")
