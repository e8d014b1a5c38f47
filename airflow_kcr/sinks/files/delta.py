"""The Delta table of a file sink, and what else differs between formats.

Readers see whole checkpoints, each row with its checkpoint.

Publication adds a checkpoint's rows in one commit of Delta, a recomputation exchanges them in one, and a reset's
checkpoints go in one. That each is there
once, and that nothing comes back which a reset has undone, is Delta's own doing: it refuses a write whose transaction
version it has seen. A write has for its version the one after the table's newest, as it was before the ledger was
asked; so a write makes those void that were decided before it.

What was done to the table, with the region's name, the timeline and the sequence, is in its history (`userMetadata`).
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from itertools import takewhile
from typing import TYPE_CHECKING, Final, TypeVar

from airflow_kcr.errors import ConfigurationError, SinkError
from airflow_kcr.protocol.rules import FileFormat
from airflow_kcr.sinks.checkpoints import CheckpointId
from airflow_kcr.sinks.contract import SparkNeeds
from airflow_kcr.sinks.files import layout
from airflow_kcr.sinks.files.folder import Folder
from airflow_kcr.sinks.files.frames import COORDINATE_COLUMNS, rows_of
from airflow_kcr.sinks.files.layout import FileTarget, Manifest, Undone
from airflow_kcr.sinks.files.tables import NO_TABLE, Table
from airflow_kcr.spark import jvm
from airflow_kcr.spark.causes import conditions, essential_line
from airflow_kcr.spark.session import CATALOG, DELTA, DELTA_CATALOG, DELTA_EXTENSION, EXTENSIONS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

T = TypeVar("T")

TIMELINE: Final = "kcr_timeline"
SEQUENCE: Final = "kcr_sequence"
"""Of the checkpoint that a row came with.

The table is partitioned by them, so a checkpoint is found and taken out unread.
"""

ATTEMPTS: Final = 10
"""At a write that has to be made, while others write to the table as well."""

LOOKED_THROUGH: Final = 50
"""How many commits of others there may have been during one of ours, for it to be found among them."""

LONGEST_REASON: Final = 500
"""Letters of an error of Delta's that are repeated in ours."""

_STACK: Final = ("at ", "JVM stacktrace")
_OF_CHECKPOINT: Final = f"{TIMELINE} INT, {SEQUENCE} BIGINT"
_ALONE: Final = frozenset({"s3", "s3a", "s3n"})
_LOG: Final = "_delta_log"
_LOG_STORE: Final = "spark.delta.logStore.{}.impl"
_FEATURES: Final = "DELTA_FEATURES_"
"""Begins the conditions of columns that a table can't have yet, by its features."""

_OVERTAKEN: Final = (
    "DELTA_CONCURRENT_",
    "DELTA_METADATA_CHANGED",
    "DELTA_PROTOCOL_CHANGED",
    "io.delta.exceptions.",
)


def require_delta(spark: SparkSession, target: FileTarget) -> None:
    """Refuse a session that can't write Delta tables, or not safely where the sink's is.

    Raises:
        ConfigurationError: the library or its SQL extension is missing, or several processes could overwrite each
            other's commits.
    """
    conf = spark.sparkContext.getConf()
    there = jvm.has_class(spark.sparkContext, DELTA_EXTENSION)
    if not there or DELTA_EXTENSION not in conf.get(EXTENSIONS, ""):
        missing = "is not configured in" if there else "is not on the class path of"
        raise ConfigurationError(
            f"{target} has format delta, and Delta {missing} {spark.sparkContext.appName!r}; add\n"
            f"  --packages {DELTA}\n"
            f"  --conf {EXTENSIONS}={DELTA_EXTENSION}\n"
            f"  --conf {CATALOG}={DELTA_CATALOG}\n"
            "to spark-submit, or --jars with its jars (delta-spark, delta-storage); or write format: parquet"
        )
    scheme = target.path.partition("://")[0] if "://" in target.path else ""
    store = _LOG_STORE.format(scheme)
    if scheme in _ALONE and not conf.get(store):
        raise ConfigurationError(
            f"{target} has format delta on {scheme}, where commits of several applications overwrite each other unless "
            f"Delta is told how to keep them apart; set {store}, to io.delta.storage.S3DynamoDBLogStore (with its jar) "
            "or to another store that does"
        )


class DeltaTable(Table):
    """The table in which readers see whole checkpoints.

    Args:
        spark: the application's session; it can write Delta tables.
        target: the sink whose checkpoints it shows.
    """

    def __init__(self, spark: SparkSession, target: FileTarget) -> None:
        self._spark, self._target = spark.newSession(), target
        self._owner = asdict(target.owner)
        self.uri = f"{target.path.rstrip('/')}/{layout.TABLE}"
        self._fitting: set[str] = set()
        self._is_made = False

    def is_there(self) -> bool:
        """Whether it has a log."""
        return bool(Folder(self._spark, self.uri).names(_LOG))

    def check(self) -> None:
        """Make the table if there is none.

        Raises:
            SinkError: it can't be made.
        """
        self.seen()

    def seen(self) -> int:
        """Return the table's newest version; the table is made if there is none."""
        if not self._is_made:
            self._make()
            self._is_made = True
        return self._tried("read", lambda: int(self._history(1)[0][0]))

    def fit(self, schema: str) -> None:
        """Have the table take rows of a schema: columns that it does not have are added to it at once.

        So it is the batch that fails where they don't fit, and no publication.
        """
        from pyspark.sql.types import StructType as Struct

        if schema in self._fitting:
            return
        known: StructType = Struct.fromJson(json.loads(schema))
        ours = [f.name for f in known.fields if f.name.lower() in (TIMELINE, SEQUENCE)]
        if ours:
            raise SinkError(f"{self._target}: column {ours[0]} is the table's own; give the rows' another name")
        for _ in range(ATTEMPTS):
            self.seen()
            if self._tried("read", lambda: self._has(known)) or self._widened(known):
                self._fitting.add(schema)
                return
        raise self._busy("take new columns")

    def show(self, manifest: Manifest, seen: int) -> bool:
        """Add the rows of a checkpoint, unless they are there."""
        if self._tried("read", lambda: self._holds(manifest.checkpoint, seen)):
            return True
        rows = self._tried("write", lambda: self._stamped(rows_of(self._spark, self._target.path, manifest), manifest))
        return self._committed(rows, seen, {"published": str(manifest.checkpoint), **_named(manifest.checkpoint)})

    def replace(self, manifest: Manifest, seen: int) -> bool:
        """Exchange the rows of a checkpoint for those of its revision; readers of older versions keep the old ones."""
        rows = self._tried("write", lambda: self._stamped(rows_of(self._spark, self._target.path, manifest), manifest))
        told = {"recomputed": str(manifest.checkpoint), "revision": manifest.revision, **_named(manifest.checkpoint)}
        return self._committed(rows, seen, told, replaceWhere=_condition(manifest.checkpoint))

    def hide(self, undone: Collection[Undone]) -> None:
        """Delete the rows of checkpoints; a commit is made in any case."""
        where, names = _undone(undone), [one._asdict() for one in undone]
        for _ in range(ATTEMPTS):
            seen = self.seen()
            if self._committed(self._nothing(), seen, {"superseded": names}, replaceWhere=where):
                return
        raise self._busy("take undone checkpoints out")

    # -- what is asked of Delta ----------------------------------------------------------------------------------

    def _make(self) -> None:
        def attempt() -> None:
            writer = self._nothing().write.format("delta").partitionBy(TIMELINE, SEQUENCE)
            writer.option("userMetadata", self._note({})).mode("ignore").save(self.uri)

        # A faster publisher has made the same one.
        self._unless_overtaken("make", attempt)

    def _history(self, commits: int) -> list[tuple[int, str]]:
        name = self.uri.replace("`", "``")
        found = self._spark.sql(f"DESCRIBE HISTORY delta.`{name}` LIMIT {commits}")
        return [(row[0], row[1] or "") for row in found.select("version", "userMetadata").collect()]

    def _has(self, known: StructType) -> bool:
        there = {f.name.lower(): f.dataType.simpleString() for f in self._table().schema.fields}
        return all(there.get(f.name.lower()) == f.dataType.simpleString() for f in known.fields)

    def _widened(self, known: StructType) -> bool:
        def attempt() -> None:
            rows = self._spark.createDataFrame([], known).selectExpr(*_checkpoint_columns("NULL", "NULL"), "*")
            writer = rows.write.format("delta").option("mergeSchema", "true").option("userMetadata", self._note({}))
            writer.mode("append").save(self.uri)

        return self._unless_overtaken("take the rows' columns in", attempt)

    def _holds(self, checkpoint: CheckpointId, version: int) -> bool:
        return not self._table(version).where(_condition(checkpoint)).limit(1).isEmpty()

    def _table(self, version: int | None = None) -> DataFrame:
        reader = self._spark.read.format("delta")
        return (reader if version is None else reader.option("versionAsOf", version)).load(self.uri)

    def _nothing(self) -> DataFrame:
        columns = (column.split() for column in f"{_OF_CHECKPOINT}, {COORDINATE_COLUMNS}".split(", "))
        return self._spark.range(0).selectExpr(*(f"CAST(NULL AS {kind}) AS {name}" for name, kind in columns))

    def _stamped(self, rows: DataFrame, manifest: Manifest) -> DataFrame:
        return rows.selectExpr(*_checkpoint_columns(str(manifest.timeline), str(manifest.sequence)), "*")

    def _committed(self, rows: DataFrame, seen: int, told: Mapping[str, object], **how: str) -> bool:
        """Write in one commit; False: there was one since the table was seen, and nothing was written."""
        attempt = uuid.uuid4().hex
        options = {
            "txnAppId": "/".join(("kcr", *self._owner.values())),
            "txnVersion": str(seen + 1),
            "userMetadata": self._note({**told, "attempt": attempt}),
            "mergeSchema": "true",
            **how,
        }
        mode = "overwrite" if how else "append"
        if not self._unless_overtaken(
            "write", lambda: rows.write.format("delta").options(**options).mode(mode).save(self.uri)
        ):
            return False
        # Delta says nothing where it skips a write.
        later = self._tried("read", lambda: self._history(LOOKED_THROUGH))
        return any(version > seen and attempt in note for version, note in later)

    def _note(self, told: Mapping[str, object]) -> str:
        return json.dumps({**self._owner, **told})

    # -- failures ------------------------------------------------------------------------------------------------

    def _unless_overtaken(self, what: str, attempt: Callable[[], object]) -> bool:
        """Return whether no other commit came in between, so that it was done."""
        try:
            self._tried(what, attempt)
        except _Overtaken:
            return False
        return True

    def _tried(self, what: str, attempt: Callable[[], T]) -> T:
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]
        from pyspark.errors import AnalysisException, PySparkException

        try:
            return attempt()
        except (PySparkException, Py4JError, OSError) as error:
            text = str(error)
            kind = _Overtaken if any(word in text for word in _OVERTAKEN) else SinkError
            # Before rows are read Delta speaks of columns, after that it quotes rows.
            of_columns = isinstance(error, AnalysisException) or any(c.startswith(_FEATURES) for c in conditions(error))
            told = _beginning(text) if of_columns else essential_line(error)
            raise kind(f"{self._target}: the table {self.uri} can't {what}: {told}") from None

    def _busy(self, what: str) -> SinkError:
        return SinkError(f"{self._target}: the table {self.uri} could not {what}, others write to it all the time")


class _Overtaken(SinkError):
    """Another process has written to the table meanwhile."""


def _named(checkpoint: CheckpointId) -> dict[str, int]:
    return {"timeline": checkpoint.timeline, "sequence": checkpoint.sequence}


def _checkpoint_columns(timeline: str, sequence: str) -> tuple[str, str]:
    return f"CAST({timeline} AS INT) AS {TIMELINE}", f"CAST({sequence} AS BIGINT) AS {SEQUENCE}"


def _condition(checkpoint: CheckpointId) -> str:
    """Return which rows are those of a checkpoint, by the table's partitions alone."""
    return f"{TIMELINE} = {checkpoint.timeline} AND {SEQUENCE} = {checkpoint.sequence}"


def _undone(undone: Collection[Undone]) -> str:
    """Return which rows are those of undone checkpoints, by the table's partitions alone."""
    return " OR ".join(
        f"({TIMELINE} < {one.timeline} AND {SEQUENCE} >= {one.first} AND {SEQUENCE} <= {one.last})" for one in undone
    )


def _beginning(text: str) -> str:
    """Return what people can read of an error: Delta says over several lines which column it is."""
    told = takewhile(lambda line: not line.lstrip().startswith(_STACK), text.splitlines())
    return " ".join(" ".join(told).split())[:LONGEST_REASON] or "Spark does not answer"


# What differs between the formats of file sinks


def table_of(spark: SparkSession, target: FileTarget) -> Table:
    """Return what a sink has beside its files; nothing of it is touched.

    Args:
        spark: the application's session.
        target: the sink.

    Raises:
        ConfigurationError: the session can't write this format.
    """
    match target.format:
        case FileFormat.PARQUET:
            return NO_TABLE
        case FileFormat.DELTA:
            require_delta(spark, target)
            return DeltaTable(spark, target)


def needs_of(kind: FileFormat) -> SparkNeeds:
    """Return what Spark needs for a format."""
    match kind:
        case FileFormat.PARQUET:
            return SparkNeeds()
        case FileFormat.DELTA:
            return SparkNeeds(packages=(DELTA,), extensions=(DELTA_EXTENSION,), catalog=DELTA_CATALOG)
