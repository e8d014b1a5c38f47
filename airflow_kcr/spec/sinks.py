"""Sinks of a spec: where the output of a group's pipeline goes, and what has to hold for that.

A spec is stored and shown, so no secret is in a sink's URL: it holds references, `${NAME}`, which are filled in where
the sink is opened, or is left out for the id of an Airflow connection.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import parse_qsl, urlsplit

from pydantic_core import CoreSchema, core_schema

from airflow_kcr.protocol.rules import Delivery, SinkMode
from airflow_kcr.settings import broken_references, names_secret, secrets_in
from airflow_kcr.spec.fields import Finding, Key, Number, Path, SinkModeWord, declared, mapping_of, word

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler

LONGEST_NAME: Final = 63
"""Bytes of an identifier; Postgres checkpoints a longer one without a word."""

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,62}")
_REFERENCE: Final = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}")
_SCHEMES: Final = frozenset({"postgresql", "postgres", "postgresql+psycopg"})
_OURS: Final = "kcr_"


class SinkKind(StrEnum):
    """What a sink writes to."""

    POSTGRES = "postgres"
    """A table; the batch's progress is stored with its rows, under a fence."""

    FILES = "files"
    """Files in a folder; the manifest of each checkpoint says which of them count."""

    ICEBERG = "iceberg"
    """A table of an Iceberg catalog; each checkpoint is one commit of files that executors have written."""

    DELTA = "delta"
    """The same with a Delta table."""

    CUSTOM = "custom"
    """Whatever a user's own code writes to; see `airflow_kcr.sinks.custom`."""


FIELDS: Final[Mapping[SinkKind, tuple[str, ...]]] = {
    SinkKind.POSTGRES: ("table", "url", "conn_id", "mode", "key"),
    SinkKind.FILES: ("path", "file_size_mib"),
    SinkKind.ICEBERG: ("table", "catalog", "options"),
    SinkKind.DELTA: ("table", "options"),
    SinkKind.CUSTOM: ("factory", "options"),
}
"""The fields of each kind of sinks; the first one says where it writes to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSpec:
    """One sink of a group: in the file an entry of `sinks`, beneath its name."""

    name: Annotated[str, Key]
    """By which the pipeline finds it: `context.sinks["name"]`."""

    kind: Annotated[SinkKind, word(SinkKind)]
    """What it writes to."""

    table: str | None = None
    """`postgres`: `table` or `schema.table`, exactly, without quotes; `iceberg`: `namespace.table`; `delta`: the folder
    of the table, an absolute path or a URI; may contain `${NAME}`."""

    url: str | None = field(default=None, repr=False)
    """`postgres`: `postgresql://…` with `${NAME}` for a password, or `${NAME}` for the whole."""

    conn_id: str | None = None
    """Instead of `url`: an Airflow connection of type `postgres`."""

    mode: SinkModeWord = SinkMode.APPEND
    """`append` adds rows, `upsert` replaces the row of the same key and can't be rolled back."""

    key: tuple[str, ...] = ()
    """With `upsert`: the columns that name a row."""

    path: str | None = None
    """`files`: this sink's own folder, an absolute path or a URI; may contain `${NAME}`."""

    file_size_mib: Number | None = None
    """`files`: the target size for merging small files, in MiB; absent: 128; 0: never merge."""

    catalog: str | None = None
    """`iceberg`: a catalog by its name in PyIceberg's configuration, or of the one that `options` describe."""

    factory: str | None = None
    """`custom`: the function that makes the sink: `module:function` or `path/to/file.py:function`."""

    options: Mapping[str, str] | None = None
    """`custom`: what that function gets; `iceberg`: properties of the catalog; `delta`: of the
    storage; secrets as `${NAME}`."""

    @property
    def shows_checkpoints(self) -> bool:
        """Whether output is shown with its checkpoint, not with its batch: then one member publishes for all groups."""
        return self.kind is not SinkKind.POSTGRES

    @property
    def needs_spark_to_show(self) -> bool:
        """Whether a checkpoint without output is shown by Spark alone: a table's own library reaches it, too."""
        return self.kind in {SinkKind.FILES, SinkKind.CUSTOM}

    def __post_init__(self) -> None:
        key: object = self.key  # a lone text, as no type checker would allow: else each letter is a column
        object.__setattr__(self, "key", (key,) if isinstance(key, str) else tuple(self.key))

    @property
    def place(self) -> str:
        """Where it writes to, as the spec has it: a table, a folder, a function."""
        return getattr(self, FIELDS[self.kind][0]) or ""

    @property
    def own_place(self) -> object:
        """What is equal for sinks that write to the same folder or lake table; None: others may write to its place."""
        match self.kind:
            case SinkKind.FILES | SinkKind.DELTA:
                return self.place.rstrip("/") or None
            case SinkKind.ICEBERG:
                return self.catalog, self.table, frozenset((self.options or {}).items())
            case _:
                return None


class _ByName:
    """Sinks as the file writes them: a mapping of their names."""

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        sinks = core_schema.dict_schema(core_schema.str_schema(), mapping_of(SinkSpec, handler))
        return core_schema.no_info_after_validator_function(
            lambda given: tuple(SinkSpec(name=name, **fields) for name, fields in given.items()),
            sinks,
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda value: {sink.name: _written(sink) for sink in value}, return_schema=sinks
            ),
        )


def _written(sink: SinkSpec) -> dict[str, Any]:
    """Return a sink's fields by name, without those that are not for its kind."""
    written = {name: getattr(sink, name) for name in ("kind", *FIELDS[sink.kind])}
    return {name: value for name, value in written.items() if (name, value) != ("key", ())}


Sinks = Annotated[tuple[SinkSpec, ...], _ByName()]


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
                "custom can't be trusted with delivery exactly_once: what it keeps is unknown; choose another "
                "delivery, or a sink of another kind",
            )
    for place, sink in enumerate(sinks):
        here = (*path, "sinks", sink.name)
        if sink.name in {other.name for other in sinks[:place]}:
            yield Finding(here, "is there twice; each sink of a group has its own name")
        yield from _sink(sink, here)


def _sink(sink: SinkSpec, path: Path) -> Iterator[Finding]:
    if not _NAME.fullmatch(sink.name):
        yield Finding(path, "is no name: use a letter first, then up to 62 of letters, digits, '_' and '-'")
    for name, one in declared(SinkSpec).items():
        if name not in ("kind", *FIELDS[sink.kind]) and getattr(sink, name) != one.default:
            yield Finding((*path, name), f"is not for kind {sink.kind}; leave it out")
    match sink.kind:
        case SinkKind.POSTGRES:
            yield from _address(sink, path)
            yield from _table(sink.table, (*path, "table"))
            yield from _key(sink, path)
        case SinkKind.FILES:
            yield from path_findings(sink.path, (*path, "path"))
            yield from size_findings(sink.file_size_mib, (*path, "file_size_mib"))
        case SinkKind.ICEBERG:
            yield from _lake_table(sink.table, (*path, "table"))
            if not sink.catalog:
                yield Finding((*path, "catalog"), "is missing; write the name of a catalog that PyIceberg knows")
            yield from options_findings(sink.options or {}, (*path, "options"))
        case SinkKind.DELTA:
            yield from path_findings(sink.table, (*path, "table"))
            yield from options_findings(sink.options or {}, (*path, "options"))
        case SinkKind.CUSTOM:
            yield from factory_findings(sink.factory, (*path, "factory"))
            yield from options_findings(sink.options or {}, (*path, "options"))


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


def _lake_table(table: str | None, path: Path) -> Iterator[Finding]:
    if table is None:
        yield Finding(path, "is missing; write namespace.table")
    elif "." not in table or not all(table.split(".")) or "\0" in table:
        yield Finding(path, "is no table's name: write namespace.table")


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
    """Check a URL without ever quoting it: a password may be anywhere in it."""
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


# File sinks of a spec: what a folder and a size have to be.

LARGEST_MIB: Final = 1_048_576
"""A target above a tebibyte is a mistake."""

_PATTERNS: Final = frozenset("?#*{}[]\\")
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*")


def path_findings(value: str | None, path: Path) -> Iterator[Finding]:
    """Yield what is wrong with a sink's folder; a key of an object store in it is never quoted."""
    if value is None:
        yield Finding(path, "is missing; write a folder: /folder, or s3a://bucket/folder")
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


# Sinks of a user's own in a spec: the function that makes one, and its options.

_FACTORY: Final = re.compile(r"\S.*:[A-Za-z_][A-Za-z0-9_.]*")


def factory_findings(value: str | None, path: Path) -> Iterator[Finding]:
    """Yield what is wrong with the name of a function that makes a sink."""
    if value is None:
        yield Finding(path, "is missing; write the function that makes the sink: module:function")
    elif not _FACTORY.fullmatch(value) or "\0" in value:
        yield Finding(path, f"{value!r} names no function: write module:function or path/to/file.py:function")


def options_findings(options: Mapping[str, str], path: Path) -> Iterator[Finding]:
    """Yield what is wrong with a sink's options; no value is quoted, it may be a secret."""
    for name in broken_references(options):
        yield Finding((*path, name), "has a '${' that begins no reference; write ${NAME}: letters, digits and '_'")
    for name in secrets_in(options):
        yield Finding(
            (*path, name),
            "is a secret, and specs are stored and shown: write ${NAME} and set NAME in the environment",
        )
