"""Sinks of a spec: where the output of a group's pipeline goes, and what has to hold for that.

A spec is stored and shown, so no secret is in a sink's URL: it holds references, `${NAME}`, which are filled in where
the sink is opened, or is left out for the id of an Airflow connection.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from airflow_kcr.confidential import names_secret
from airflow_kcr.kafka_settings import broken_references
from airflow_kcr.protocol.delivery import Delivery
from airflow_kcr.protocol.sinks import FileFormat, SinkMode
from airflow_kcr.spec.custom_sinks import factory_findings, options_findings
from airflow_kcr.spec.file_sinks import path_findings, size_findings
from airflow_kcr.spec.findings import Finding, Path

LONGEST_NAME: Final = 63
"""Bytes of an identifier; Postgres checkpoints a longer one without a word."""

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,62}")
_REFERENCE: Final = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}")
_SCHEMES: Final = frozenset({"postgresql", "postgres", "postgresql+psycopg"})
_OURS: Final = "kcr_"
_OF_POSTGRES: Final = ("table", "url", "conn_id")
_OF_FILES: Final = ("path", "format", "file_size_mib")
_OF_CUSTOM: Final = ("factory", "options")


class SinkKind(StrEnum):
    """What a sink writes to."""

    POSTGRES = "postgres"
    """A table; the batch's progress is stored with its rows, under a fence."""

    FILES = "files"
    """Files in a folder; the manifest of each checkpoint says which of them count."""

    CUSTOM = "custom"
    """Whatever a user's own code writes to; see `airflow_kcr.spark.custom_sinks`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSpec:
    """One sink of a group: in the file an entry of `sinks`, beneath its name."""

    name: str
    """By which the pipeline finds it: `context.sinks["name"]`."""

    kind: SinkKind
    table: str | None = None
    """`table` or `schema.table`, taken to the letter, without quotes; of `postgres`."""

    url: str | None = field(default=None, repr=False)
    """`postgresql://…` with references for what is secret, or one reference for the whole; or `conn_id`."""

    conn_id: str | None = None
    """An Airflow connection of type `postgres`."""

    mode: SinkMode = SinkMode.APPEND
    key: tuple[str, ...] = ()
    """The columns that name a row, where `mode` is `upsert`."""

    path: str | None = None
    """A folder of this sink alone: absolute, or a URI that Hadoop's file systems know; of `files`."""

    format: FileFormat | None = None
    """Of `files`: what readers find there; absent: parquet."""

    file_size_mib: int | None = None
    """Of `files`: into how large ones a checkpoint's small files are put together, in MiB; 0: never; absent: 128."""

    factory: str | None = None
    """`module:function` or `path/to/file.py:function` that makes the sink; of `custom`."""

    options: Mapping[str, str] | None = None
    """What that function is told, references for what is secret; of `custom`."""

    def __post_init__(self) -> None:
        key: object = self.key  # a lone text, as no type checker would allow: else each letter is a column
        object.__setattr__(self, "key", (key,) if isinstance(key, str) else tuple(self.key))


def sinks_findings(sinks: tuple[SinkSpec, ...], delivery: Delivery, path: Path) -> Iterator[Finding]:
    """Yield everything that is wrong with a group's sinks.

    Args:
        sinks: the group's.
        delivery: what it promises.
        path: the group's.
    """
    if delivery is Delivery.EXACTLY_ONCE and len(sinks) != 1:
        yield Finding(
            (*path, "sinks"),
            f"has {len(sinks) or 'no'} sink{'s' if len(sinks) > 1 else ''}; delivery exactly_once needs exactly one, "
            "which stores progress together with the output: declare it, or choose another delivery",
        )
    for sink in sinks:
        if delivery is Delivery.EXACTLY_ONCE and sink.kind is SinkKind.CUSTOM:
            yield Finding(
                (*path, "sinks", sink.name, "kind"),
                "custom can't be trusted with delivery exactly_once: nobody knows what it keeps; choose another "
                "delivery, or a sink of kind postgres or files",
            )
    for place, sink in enumerate(sinks):
        here = (*path, "sinks", sink.name)
        if sink.name in {other.name for other in sinks[:place]}:
            yield Finding(here, "is there twice; each sink of a group has its own name")
        yield from _sink(sink, here)


def _sink(sink: SinkSpec, path: Path) -> Iterator[Finding]:
    if not _NAME.fullmatch(sink.name):
        yield Finding(path, "is no name: use a letter first, then up to 62 of letters, digits, '_' and '-'")
    match sink.kind:
        case SinkKind.POSTGRES:
            yield from _without(sink, (*_OF_FILES, *_OF_CUSTOM), path)
            yield from _address(sink, path)
            yield from _table(sink.table, (*path, "table"))
            yield from _key(sink, path)
        case SinkKind.FILES:
            yield from _without(sink, (*_OF_POSTGRES, *_OF_CUSTOM), path)
            yield from path_findings(sink.path, (*path, "path"))
            yield from size_findings(sink.file_size_mib, (*path, "file_size_mib"))
            yield from _without_mode(sink, path)
        case SinkKind.CUSTOM:
            yield from _without(sink, (*_OF_POSTGRES, *_OF_FILES), path)
            yield from factory_findings(sink.factory, (*path, "factory"))
            yield from options_findings(sink.options or {}, (*path, "options"))
            yield from _without_mode(sink, path)


def _without_mode(sink: SinkSpec, path: Path) -> Iterator[Finding]:
    if sink.mode is not SinkMode.APPEND:
        yield Finding((*path, "mode"), f"is not for kind {sink.kind}; leave it out")
    if sink.key:
        yield Finding((*path, "key"), f"is not for kind {sink.kind}; leave it out")


def _without(sink: SinkSpec, names: tuple[str, ...], path: Path) -> Iterator[Finding]:
    for name in names:
        if getattr(sink, name) is not None:
            yield Finding((*path, name), f"is not for kind {sink.kind}; leave it out")


def _table(table: str | None, path: Path) -> Iterator[Finding]:
    if table is None:
        yield Finding(path, "is missing; write table or schema.table")
        return
    parts = table.split(".")
    if len(parts) > 2 or not all(map(_is_identifier, parts)):
        yield Finding(
            path, f"is no table's name: write table or schema.table, without quotes, each at most {LONGEST_NAME} bytes"
        )
    elif parts[-1].startswith(_OURS):
        yield Finding(path, f"begins with {_OURS}, as only the sink's own tables do; choose another name")


def _address(sink: SinkSpec, path: Path) -> Iterator[Finding]:
    if sink.conn_id is not None:
        if sink.url is not None:
            yield Finding((*path, "conn_id"), "is there beside url; a database is reached by one or the other")
        if not sink.conn_id.strip() or "\0" in sink.conn_id:
            yield Finding((*path, "conn_id"), "is empty, or holds a NUL")
    if sink.url is not None:
        yield from _url(sink.url, (*path, "url"))
    elif sink.conn_id is None:
        yield Finding(path, "has no database: write url or conn_id")


def _url(url: str, path: Path) -> Iterator[Finding]:
    """Look at a URL without ever quoting it: a password may be anywhere in it."""
    if broken_references({"url": url}):
        yield Finding(path, "has a '${' that begins no reference; write ${NAME}: letters, digits and '_'")
        return
    if _REFERENCE.fullmatch(url):
        return
    try:
        # A reference is no part of a URL's syntax; what stands for it is.
        parts = urlsplit(_REFERENCE.sub("0", url))
        secrets = [urlsplit(_REFERENCE.sub("", url)).password or ""]
    except ValueError:
        parts, secrets = None, []
    if parts is None or parts.scheme not in _SCHEMES:
        yield Finding(path, "is no URL of Postgres: write postgresql://USER:${PASSWORD}@HOST/DATABASE, or ${NAME}")
        return
    query = parse_qsl(_REFERENCE.sub("", urlsplit(url).query))
    secrets += [value for name, value in query if names_secret(name)]
    if any(secrets):
        yield Finding(
            path,
            "holds a password, and specs are stored and shown: write ${NAME} and set NAME in the environment, or use "
            "conn_id",
        )


def _key(sink: SinkSpec, path: Path) -> Iterator[Finding]:
    here = (*path, "key")
    if sink.mode is SinkMode.UPSERT and not sink.key:
        yield Finding(here, "is missing; mode upsert replaces the row that has the same key: name its columns")
    if sink.mode is not SinkMode.UPSERT and sink.key:
        yield Finding(here, f"has no effect with mode {sink.mode}; leave it out, or write mode: upsert")
    for place, column in enumerate(sink.key):
        if not _is_identifier(column):
            yield Finding((*here, place), f"is no column's name: at most {LONGEST_NAME} bytes, not empty, no NUL")
        elif column in sink.key[:place]:
            yield Finding((*here, place), f"{column!r} is there twice")


def _is_identifier(name: str) -> bool:
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return False
    return 0 < size <= LONGEST_NAME and not set(name) & {"\0", '"'}
