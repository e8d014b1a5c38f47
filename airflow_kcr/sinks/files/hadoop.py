"""A sink's folder as Hadoop has it, which reaches a disk, HDFS, an object store, whatever Spark can write to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache, reduce
from typing import TYPE_CHECKING, Final, TypeVar

from airflow_kcr.errors import SinkError
from airflow_kcr.sinks.files.folder import AT_ONCE, Folder, FolderRefused, beside
from airflow_kcr.spark import jvm

if TYPE_CHECKING:
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.sql import SparkSession

    from airflow_kcr.spark.jvm import JavaObject


T = TypeVar("T")

_ABSENT: Final = "java.io.FileNotFoundException"
_DAMAGED: Final = frozenset({"org.apache.hadoop.fs.ChecksumException", "java.io.EOFException"})
_REFUSED: Final = frozenset(
    {
        "java.nio.file.AccessDeniedException",
        "org.apache.hadoop.security.AccessControlException",
        "org.apache.hadoop.fs.UnsupportedFileSystemException",
        "org.apache.hadoop.fs.ParentNotDirectoryException",
        "java.lang.ClassNotFoundException",
    }
)
_REFUSED_WORDS: Final = ("Permission denied", "Mkdirs failed", "ClassNotFoundException", "Not a directory")


@cache
def _at_once() -> ThreadPoolExecutor:
    # One for the process: each of its threads keeps one of the JVM, which an end of it would leave behind.
    return ThreadPoolExecutor(AT_ONCE, thread_name_prefix="kcr files")


class HadoopFolder(Folder):
    """A folder as Spark reaches it.

    Args:
        spark: whose settings name the file systems and their credentials.
        uri: as the user has written it; a path without a scheme is one of the default file system.
    """

    def __init__(self, spark: SparkSession, uri: str) -> None:
        self._spark = spark
        self.uri = uri.rstrip("/")
        self._opened: JavaObject = None
        self._classes: dict[str, JavaObject] = {}

    def read(self, path: str) -> str | None:
        """Return a text; None: there is none. One that can't be read whole is an empty one."""
        from py4j.protocol import Py4JJavaError

        def attempt() -> str | None:
            try:
                stream = self._system().open(self._path(path))
            except Py4JJavaError as error:
                if _class(error) == _ABSENT:
                    return None
                raise
            try:
                return str(self._of_java("org.apache.commons.io.IOUtils").toString(stream, "UTF-8"))
            except Py4JJavaError as error:
                if _class(error) in _DAMAGED:
                    return ""
                raise
            finally:
                stream.close()

        return self._tried(attempt, "read", path)

    def read_all(self, paths: Iterable[str]) -> list[str | None]:
        """Return several texts, in their order."""
        return list(_at_once().map(self.read, paths))

    def put(self, path: str, text: str) -> None:
        """Write a text under its own name, whatever is there; half of it is there if the process ends meanwhile."""
        self._tried(lambda: self._write(path, text, overwrite=True), "write", path)

    def create(self, path: str, text: str) -> bool:
        """Write a text under another name, then give it its own; False: there was one already, which stays."""

        def attempt() -> bool:
            if self._system().exists(self._path(path)):
                return False
            return self._renamed(self._written(path, text), path)

        return self._tried(attempt, "create", path)

    def replace(self, path: str, text: str) -> None:
        """Write a text, whatever is there."""

        def attempt() -> bool:
            written = self._written(path, text)
            self._system().delete(self._path(path), False)
            return self._renamed(written, path)

        if not self._tried(attempt, "write", path):
            raise SinkError(f"{self.uri}/{path} was written by another process at the same time")

    def move(self, source: str, path: str) -> None:
        """Rename a file to a name that doesn't exist."""

        def attempt() -> bool:
            self._system().mkdirs(self._path(path).getParent())
            return self._renamed(source, path)

        if not self._tried(attempt, "move", path):
            raise SinkError(f"{self.uri}/{source} could not be given the name {path}")

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files or folders with all that is in them; those that aren't there are fine."""

        def attempt(path: str) -> None:
            self._tried(lambda: self._system().delete(self._path(path), True), "delete", path)

        list(_at_once().map(attempt, paths))

    def names(self, path: str) -> tuple[str, ...]:
        """Return the names of what is in a folder, in order; none if there is no such folder."""
        return tuple(sorted(str(status.getPath().getName()) for status in self._listed(path)))

    def walk(self, path: str) -> Mapping[str, int]:
        """Return every file below a folder, by its path from the sink's folder, with its bytes, in order."""
        from py4j.protocol import Py4JJavaError

        def attempt() -> dict[str, int]:
            found: dict[str, int] = {}
            root = str(self._system().makeQualified(self._path("")).toUri().getPath()).rstrip("/")
            try:
                # One question for all that is below; an object store has no folders that it could be asked one by one.
                listed = self._system().listFiles(self._path(path), True)
                while listed.hasNext():
                    status = listed.next()
                    where = str(status.getPath().toUri().getPath())
                    found[where.removeprefix(f"{root}/")] = int(status.getLen())
            except Py4JJavaError as error:
                if _class(error) != _ABSENT:
                    raise
            return {name: found[name] for name in sorted(found)}

        return self._tried(attempt, "list", path)

    def _listed(self, path: str) -> list[JavaObject]:
        from py4j.protocol import Py4JJavaError

        def attempt() -> list[JavaObject]:
            try:
                return list(self._system().listStatus(self._path(path)))
            except Py4JJavaError as error:
                if _class(error) == _ABSENT:
                    return []
                raise

        return self._tried(attempt, "list", path)

    def _written(self, path: str, text: str) -> str:
        """Write a text under a new name, and return the name."""
        temporary = beside(path)
        self._write(temporary, text, overwrite=False)
        return temporary

    def _write(self, path: str, text: str, *, overwrite: bool) -> None:
        stream = self._system().create(self._path(path), overwrite)
        try:
            stream.write(text.encode())
        finally:
            stream.close()

    def _renamed(self, source: str, path: str) -> bool:
        system = self._system()
        if system.rename(self._path(source), self._path(path)):
            return True
        system.delete(self._path(source), False)
        return False

    def _tried(self, attempt: Callable[[], T], what: str, path: str) -> T:
        from py4j.protocol import Py4JError, Py4JJavaError

        try:
            return attempt()
        except Py4JJavaError as error:
            why = str(error.java_exception.toString()).splitlines()[0]
            kind = FolderRefused if _class(error) in _REFUSED or any(w in why for w in _REFUSED_WORDS) else SinkError
            raise kind(f"can't {what} {self.uri}/{path}: {why}") from error
        except (Py4JError, OSError) as error:
            raise SinkError(f"can't {what} {self.uri}/{path}: Spark does not answer ({error})") from error

    def _path(self, path: str) -> JavaObject:
        return self._of_java("org.apache.hadoop.fs.Path")(f"{self.uri}/{path}" if path else self.uri)

    def _of_java(self, name: str) -> JavaObject:
        """Return a class of the JVM, which is asked for it once: py4j does so for each part of a name."""
        if name not in self._classes:
            machine = jvm.virtual_machine(self._spark.sparkContext)
            self._classes[name] = reduce(getattr, name.split("."), machine)
        return self._classes[name]

    def _system(self) -> JavaObject:
        if self._opened is None:
            context = jvm.java_context(self._spark.sparkContext)
            self._opened = self._path("").getFileSystem(context.hadoopConfiguration())
        return self._opened


def _class(error: Py4JJavaError) -> str:
    return str(error.java_exception.getClass().getName())
