"""Where Spark's programs are on this machine, for a process that is about to start one."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from airflow_kcr.errors import ConfigurationError, ToolMissing

_INSTALL: Final = "install airflow-kcr[spark] where the tasks run, or set SPARK_HOME to a Spark of version 4"
_MEND: Final = "`pip install --force-reinstall --no-deps 'pyspark>=4.0,<4.1'` mends it"
_JAVA: Final = "install a Java runtime, version 17 or newer, where Spark is started"


def no_pyspark(error: ImportError) -> ToolMissing:
    """Return why PySpark can't be imported, and the command that mends it.

    Args:
        error: of the import.
    """
    if error.name == "pyspark" and find_spec("pyspark") is None:
        return ToolMissing("PySpark is not installed; install airflow-kcr[spark]")
    return ToolMissing(f"another package has overwritten a part of PySpark ({error}): {_MEND}")


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


def require_java(environ: Mapping[str, str]) -> None:
    """Refuse to start Spark where there is no Java.

    Args:
        environ: of the process that starts it.

    Raises:
        ToolMissing: there is none.
        ConfigurationError: JAVA_HOME leads nowhere.
    """
    home = environ.get("JAVA_HOME", "")
    if home and not (Path(home) / "bin" / "java").is_file():
        raise ConfigurationError(f"JAVA_HOME is {home}, but there is no bin/java in it; correct it, or {_JAVA}")
    if not home and shutil.which("java", path=environ.get("PATH", os.defpath)) is None:
        raise ToolMissing(f"Spark needs Java, and there is none by JAVA_HOME nor on the path; {_JAVA}")
