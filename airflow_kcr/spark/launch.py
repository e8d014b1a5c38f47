"""Starting Spark: where its programs are, jars fetched by one process at a time, and its JVM."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from airflow_kcr.errors import ConfigurationError, KcrError, ServiceFailed, ToolMissing
from airflow_kcr.spark import jvm

if TYPE_CHECKING:
    from pyspark import SparkConf


# Locks between processes

POLL_PERIOD: Final = 0.1
"""Seconds between two tries."""


@contextmanager
def locked(path: Path, *, within: float, late: Callable[[], Exception]) -> Iterator[None]:
    """Hold a lock file, made if it is not there, until the block ends.

    Args:
        path: the file; its folder is made, too.
        within: seconds to wait for another process that holds it.
        late: makes what is raised then.

    Raises:
        OSError: the file can't be made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    deadline, pause = time.monotonic() + within, threading.Event()
    with path.open("ab") as lock:
        while not _taken(lock.fileno()):
            if time.monotonic() >= deadline:
                raise late()
            pause.wait(POLL_PERIOD)
        yield


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# Spark

_KEPT: Final = 200
"""Lines of the JVM that are kept while it starts."""

_SHOWN: Final = 3
_TELLING: Final = re.compile(
    r"^(?:Exception in thread|Error\b|Unrecognized|Invalid|.*[a-z]Error:|.*unresolved dependency)"
)
_STANDARD_ERROR: Final = 2
LAUNCHED_WITHIN: Final = 120.0
"""Seconds that the JVM may take until it answers, where it has no jars to fetch."""

_ENDS_WITHIN: Final = 5.0
"""Seconds in which the last words of a JVM that has ended are read."""


def launch(conf: SparkConf) -> None:
    """Start the JVM of this process, or use the one that runs; jars that are missing are fetched by one at a time.

    Args:
        conf: what the JVM must know as it starts.

    Raises:
        ToolMissing: there is no Java.
        ConfigurationError: JAVA_HOME leads nowhere, or jars can't be stored where they are fetched to.
        ServiceFailed: the JVM ended as it started, or did not start in time; the message has its own words.
    """
    from pyspark.errors import PySparkRuntimeError

    if jvm.launched():
        jvm.launch(conf, _STANDARD_ERROR, LAUNCHED_WITHIN)
        return
    settings = dict(conf.getAll())
    within = FETCHED_WITHIN if settings.get(PACKAGES) else LAUNCHED_WITHIN
    with fetched_alone(settings):
        overheard = _Overheard()
        try:
            jvm.launch(conf, overheard.end, within)
        except TimeoutError as late:
            overheard.close()
            what = f"did not start within {within:g} s, and was killed"
            raise _failure(settings, what, overheard.last()) from late
        except (PySparkRuntimeError, OSError) as error:
            overheard.close()
            raise _failure(settings, "did not start", overheard.last()) from error
        overheard.close()


class _Overheard:
    """What the JVM writes to its standard error: passed on to this process's, its last lines kept."""

    def __init__(self) -> None:
        self._read, self.end = os.pipe()
        self._lines: deque[str] = deque(maxlen=_KEPT)
        self._thread = threading.Thread(target=self._pass_on, name="Spark's standard error", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Let go of this process's end, so that the JVM's end is the last."""
        os.close(self.end)

    def last(self) -> tuple[str, ...]:
        """Return the last lines of a JVM that has ended."""
        self._thread.join(_ENDS_WITHIN)
        return tuple(self._lines)

    def _pass_on(self) -> None:
        with open(self._read, "rb", buffering=0) as source:
            rest = b""
            while chunk := source.read(65536):
                with suppress(OSError):  # the reader is gone; the JVM must be able to write all the same
                    os.write(_STANDARD_ERROR, chunk)
                *lines, rest = (rest + chunk).split(b"\n")
                self._lines.extend(line.decode(errors="replace") for line in lines)
                rest = rest[-4096:]
            self._lines.append(rest.decode(errors="replace"))


def _failure(conf: Mapping[str, str], what: str, lines: tuple[str, ...]) -> KcrError:
    try:
        require_java(os.environ)
    except KcrError as missing:
        return missing
    text = f"Spark's JVM {what}: {_reason(lines)}"
    if conf.get(PACKAGES):
        text += (
            f"\nIt fetches {conf[PACKAGES]}: check that a Maven repository can be reached from here, or name the jars "
            "themselves (--jars)"
        )
    return ServiceFailed(text)


def _reason(lines: tuple[str, ...]) -> str:
    """Return the line that says most; else the last ones."""
    said = [line.strip() for line in lines if line.strip()]
    telling = next((line for line in said if _TELLING.match(line)), "")
    return telling or "\n".join(said[-_SHOWN:]) or "it said nothing"


# Where Spark's programs are on this machine, for a process that is about to start one.

_INSTALL: Final = "install airflow-kcr[spark] where the tasks run, or set SPARK_HOME to a Spark of version 4"
_CLIENT: Final = "pyspark-client"
_JAVA: Final = "install a Java runtime, version 17 or newer, where Spark is started"


def require_pyspark() -> str:
    """Return the version of PySpark, which can be imported whole.

    Raises:
        ToolMissing: it is not there, is a client without Spark, or another package has overwritten a part of it.
    """
    try:
        import pyspark
        import pyspark.sql
        from pyspark import SparkContext  # noqa: F401 - what the client lacks
    except ImportError as error:
        raise no_pyspark(error) from error
    try:
        installed = metadata.distribution("pyspark")
    except metadata.PackageNotFoundError:  # files without metadata, as those of a Spark that was unpacked
        return pyspark.__version__
    # An older part may be imported, and fails later. A Spark at another place, as SPARK_HOME names one, is whole.
    is_here = Path(str(installed.locate_file("pyspark/__init__.py"))) == Path(pyspark.__file__ or "")
    if is_here and line_of(pyspark.__version__) != line_of(installed.version):
        raise _overwritten(f"PySpark {installed.version} says that it is {pyspark.__version__}")
    return pyspark.__version__


def line_of(version: str) -> str:
    """Return the line of a version of Spark: `4.2` of `4.2.1`."""
    return ".".join(version.split(".")[:2])


def no_pyspark(error: ImportError) -> ToolMissing:
    """Return why PySpark can't be imported, and the command that mends it.

    Args:
        error: of the import.
    """
    if error.name == "pyspark" and find_spec("pyspark") is None:
        return ToolMissing("PySpark is not installed; install airflow-kcr[spark]")
    if not _is_installed("pyspark") and _is_installed(_CLIENT):
        return ToolMissing(
            f"only {_CLIENT} {metadata.version(_CLIENT)} is installed, which has no Spark of its own; install "
            "airflow-kcr[spark]"
        )
    return _overwritten(str(error))


def pyspark_trouble() -> ToolMissing | None:
    """Return why the installed PySpark can't be imported; None where none is installed, or all is well."""
    if _is_installed("pyspark"):
        try:
            require_pyspark()
        except ToolMissing as broken:
            return broken
    return None


def _is_installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def _overwritten(seen: str) -> ToolMissing:
    mend = f"pip install --force-reinstall --no-deps {_written_last()}"
    return ToolMissing(f"another package has overwritten a part of PySpark ({seen}): `{mend}` mends it")


def _written_last() -> str:
    """Return what must be installed again: PySpark as its own metadata says, which the other package left alone."""
    try:
        return f"pyspark=={metadata.version('pyspark')}"
    except metadata.PackageNotFoundError:  # files without metadata, put there by hand
        return "pyspark"


def submit_environment(environ: Mapping[str, str], program: str = "spark-submit") -> dict[str, str]:
    """Return the variables that a process needs beside its own so that `program` is found and works.

    `SPARK_HOME` counts first, then the path, then the installed PySpark; nothing that is set is changed.

    Args:
        environ: of the process.
        program: its name.

    Raises:
        ToolMissing: there is no Spark, or no Java.
        ConfigurationError: SPARK_HOME or JAVA_HOME leads nowhere.
    """
    found: dict[str, str] = {}
    path = environ.get("PATH", os.defpath)
    home = environ.get("SPARK_HOME", "")
    if home:
        if not (Path(home) / "bin" / program).is_file():
            raise ConfigurationError(
                f"SPARK_HOME is {home}, but there is no bin/{program} in it; correct it, or unset it where PySpark is "
                "installed"
            )
        found["PATH"] = _first(Path(home) / "bin", path)
    elif shutil.which(program, path=path) is None:
        home = str(_pyspark(program))
        found |= {"SPARK_HOME": home, "PATH": _first(Path(home) / "bin", path)}
    require_java(environ)
    if not environ.get("PYSPARK_DRIVER_PYTHON"):
        # The driver is this package's program, so it runs where this package is; executors are the user's choice.
        found["PYSPARK_DRIVER_PYTHON"] = sys.executable
    return found


def _first(folder: Path, path: str) -> str:
    return os.pathsep.join([str(folder), path])


def _pyspark(program: str) -> Path:
    """Return the folder of the installed PySpark, without importing it."""
    spec = find_spec("pyspark")
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    if not folders:
        raise ToolMissing(f"Spark is missing: there is no {program} on the path, and no PySpark; {_INSTALL}")
    folder = Path(folders[0])
    if not (folder / "bin" / program).is_file():
        raise ToolMissing(f"Spark is missing: the PySpark in {folder} is a client without bin/{program}; {_INSTALL}")
    return folder


def require_java(environ: Mapping[str, str]) -> Path:
    """Return the Java program that Spark starts with; refuse to start it if there is none.

    Args:
        environ: of the process that starts it.

    Raises:
        ToolMissing: there is none.
        ConfigurationError: JAVA_HOME leads nowhere.
    """
    home = environ.get("JAVA_HOME", "")
    if home and not (Path(home) / "bin" / "java").is_file():
        raise ConfigurationError(f"JAVA_HOME is {home}, but there is no bin/java in it; correct it, or {_JAVA}")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java", path=environ.get("PATH", os.defpath))
    if found is None:
        raise ToolMissing(f"Spark needs Java, and there is none by JAVA_HOME nor on the path; {_JAVA}")
    return Path(found)


OLDEST_JAVA: Final = 17
"""What Spark 4 needs (https://spark.apache.org/docs/4.2.0/), and Kafka's broker."""

_ANSWERS_WITHIN: Final = 20.0
"""Seconds that `java -version` may take."""


def sound_java(environ: Mapping[str, str]) -> tuple[Path, str]:
    """Return the Java program that Spark starts with, and its version, which is new enough.

    Args:
        environ: of the process that starts it.

    Raises:
        ToolMissing: there is none, it is too old, or it doesn't say.
        ConfigurationError: JAVA_HOME leads nowhere.
    """
    program = require_java(environ)
    try:
        said = subprocess.run(  # noqa: S603 - the Java that Spark would start
            [program, "-version"],
            capture_output=True,
            text=True,
            timeout=_ANSWERS_WITHIN,
            check=False,
            env=dict(environ),
        ).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolMissing(f"{program} -version does not answer: {type(error).__name__}") from error
    version = re.search(r'version "(?:1\.)?(\d+)[^"]*"', said)
    if version is None:
        raise ToolMissing(f"{program} -version names no version; it says: {said.strip()[:200] or 'nothing'}")
    if int(version[1]) < OLDEST_JAVA:
        raise ToolMissing(f"{program} is Java {version[1]}; install {OLDEST_JAVA} or newer, or set JAVA_HOME to it")
    return program, version[1]


# The cache of jars that Spark fetches by their Maven coordinates, filled by one process at a time.
#
# Spark has Ivy fetch `spark.jars.packages` while it starts, into a cache that all applications of a user share, and
# Ivy does not share it: of two that start together and miss the same jar, each may find what the other has half
# written, and dies. So the first application fetches alone. A mark in the cache says that a set of coordinates is
# there: those that come later need not wait for each other.

PACKAGES: Final = "spark.jars.packages"
FOLDER: Final = "spark.jars.ivy"
FETCHED_WITHIN: Final = 900.0
"""Seconds that one process may take to fetch; who waits for it longer gives up."""

_USUAL: Final = ".ivy2.5.2"


def folder_of(conf: Mapping[str, str]) -> Path:
    """Return the folder of the cache: as the settings say, else Spark's own in the home folder."""
    chosen = conf.get(FOLDER)
    return Path(chosen).expanduser() if chosen else Path.home() / _USUAL


@contextmanager
def fetched_alone(conf: Mapping[str, str], within: float = FETCHED_WITHIN) -> Iterator[None]:
    """Let no other process of this project fetch jars during the block, unless they are there; mark them at its end.

    Args:
        conf: settings of Spark, with the coordinates to fetch; without any there is nothing to wait for.
        within: seconds to wait for another process.

    Raises:
        ConfigurationError: the cache can't be written.
        ServiceFailed: another process has been fetching for too long.
    """
    coordinates, folder = conf.get(PACKAGES, ""), folder_of(conf)
    mark = folder / f".kcr-{hashlib.sha256(coordinates.encode()).hexdigest()[:16]}"
    if not coordinates or mark.exists():
        yield
        return
    late = ServiceFailed(
        f"another process has been fetching jars into {folder} for {within:g} s; wait for it, or end it: the lock "
        f"{folder / '.kcr-lock'} ends with it"
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".kcr-lock").touch()
    except OSError as error:
        raise ConfigurationError(
            f"Spark fetches jars into {folder}, which can't be written ({error.strerror}); name another folder in "
            f"{FOLDER}"
        ) from error
    with locked(folder / ".kcr-lock", within=within, late=lambda: late):
        yield
        mark.touch()
