"""The Java that runs the brokers, Spark, and the download of their jars."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path
from typing import Final

from airflow_kcr.errors import ToolMissing

OLDEST: Final = 17
ADVICE: Final = (
    f"install a Java runtime, version {OLDEST} or newer (Debian and Ubuntu: `apt-get install openjdk-17-jre-headless`; "
    "macOS: `brew install openjdk@17`), and set JAVA_HOME where it is not on the PATH"
)
# For processes that live for minutes on a small machine: less compiling, fewer threads of the collector.
QUICK_START: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")


def java() -> Path:
    """Return the Java program, that of JAVA_HOME first, then that of the PATH.

    Raises:
        ToolMissing: if there is none, or it is older than what Spark and Kafka need.
    """
    home = os.environ.get("JAVA_HOME", "")
    if home and not (Path(home) / "bin" / "java").is_file():
        raise ToolMissing(f"JAVA_HOME is {home}, but there is no bin/java in it: correct it, or {ADVICE}")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if found is None:
        raise ToolMissing(f"Java is needed and was not found, neither by JAVA_HOME nor on the PATH: {ADVICE}")
    version = _version(found)
    if version < OLDEST:
        raise ToolMissing(f"{found} is Java {version}, and {OLDEST} or newer is needed: {ADVICE}")
    return Path(found)


@lru_cache
def _version(program: str) -> int:
    try:
        told = subprocess.run([program, "-version"], capture_output=True, text=True, check=True, timeout=60).stderr
    except (OSError, subprocess.SubprocessError) as error:
        raise ToolMissing(f"{program} could not be run ({error}): {ADVICE}") from error
    match = re.search(r'version "(?:1\.)?(\d+)', told)
    if match is None:
        raise ToolMissing(f"{program} does not say its version ({told.strip()[:200]!r}): {ADVICE}")
    return int(match[1])
