"""Jars by their Maven coordinates, downloaded once into a cache with the Ivy that PySpark ships.

A set of jars is a folder of the cache named after its coordinates. It is filled under another name and renamed when it
is complete, so a folder that exists is whole; who needs the same set meanwhile waits at a lock. Each set has an Ivy
cache of its own, because Ivy does not share one between processes. The local Maven repository is neither read nor
written: it may hold half-downloaded entries of other programs.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit
from xml.sax.saxutils import quoteattr

from airflow_kcr.embedded import processes
from airflow_kcr.errors import ConfigurationError, ServiceFailed, ToolMissing
from airflow_kcr.spark import session
from airflow_kcr.spark.launch import locked, no_pyspark, require_java, sound_java

HOME_VARIABLE: Final = "KCR_HOME"
REPOSITORY_VARIABLE: Final = "KCR_MAVEN_REPOSITORY"
MAVEN_CENTRAL: Final = "https://repo1.maven.org/maven2/"
DOWNLOAD_WITHIN: Final = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JarSet:
    """Jars to resolve together, with what they need at run time.

    Attributes:
        name: For the cache's folder and for messages.
        coordinates: `group:artifact:version`, one or several separated by commas.
        variable: The environment variable that gives other coordinates.
        without: Artifacts to leave out wherever they come from, by their names.
    """

    name: str
    coordinates: str
    variable: str
    without: frozenset[str] = frozenset()

    @property
    def wanted(self) -> tuple[tuple[str, str, str], ...]:
        """The coordinates in force.

        Raises:
            ConfigurationError: if one is not of the form `group:artifact:version`.
        """
        text = os.environ.get(self.variable) or self.coordinates
        parts = [tuple(part.strip().split(":")) for part in text.split(",")]
        if not all(len(part) == 3 and all(re.fullmatch(r"[\w.\-]+", word) for word in part) for part in parts):
            raise ConfigurationError(
                f"{self.variable} is {text!r}: write group:artifact:version, several separated by commas"
            )
        return tuple((part[0], part[1], part[2]) for part in parts)


KAFKA_BROKER: Final = JarSet(
    name="kafka-broker",
    coordinates="org.apache.kafka:kafka_2.13:4.1.1,org.slf4j:slf4j-simple:1.7.36",
    variable="KCR_KAFKA_JARS",
)


def spark_connector() -> JarSet:
    """Return the Kafka connector of Spark, without what the installed PySpark ships already."""
    return JarSet(
        name="spark-kafka",
        coordinates=session.CONNECTOR,
        variable="KCR_SPARK_KAFKA_JARS",
        without=shipped(),
    )


def shipped() -> frozenset[str]:
    """Return the artifacts that the installed PySpark ships, by their names."""
    return frozenset(re.sub(r"-\d.*", "", jar.stem) for jar in pyspark_jars().glob("*.jar"))


def home() -> Path:
    """Return the folder of what is downloaded once: KCR_HOME, else `airflow-kcr` in the user's cache folder."""
    if chosen := os.environ.get(HOME_VARIABLE):
        return Path(chosen).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "airflow-kcr"


def repository() -> str:
    """Return the address of the Maven repository: KCR_MAVEN_REPOSITORY, else Maven Central."""
    return os.environ.get(REPOSITORY_VARIABLE) or MAVEN_CENTRAL


def pyspark_jars() -> Path:
    """Return the folder of PySpark's jars.

    Raises:
        ToolMissing: if PySpark is not installed.
    """
    try:
        import pyspark
    except ImportError as error:
        raise no_pyspark(error) from error
    return Path(pyspark.__path__[0]) / "jars"


def resolve(jars: JarSet) -> tuple[Path, ...]:
    """Return the jars of a set, downloading them where the cache does not have them.

    Raises:
        ServiceFailed: if one can't be downloaded.
        ToolMissing: if there is no Java to download with.
    """
    folder = home() / "jars" / _key(jars)
    if found := _cached(folder):
        return found
    late = ServiceFailed(
        f"another process has been fetching {jars.name} into {folder.parent} for {2 * DOWNLOAD_WITHIN:g} s; end it"
    )
    with locked(_ivy_home(jars) / "lock", within=2 * DOWNLOAD_WITHIN, late=lambda: late):
        return _cached(folder) or _download(jars, folder)


def _ivy_home(jars: JarSet) -> Path:
    return home() / "ivy" / jars.name


def _key(jars: JarSet) -> str:
    identity = json.dumps([jars.wanted, sorted(jars.without)])
    return f"{jars.name}-{jars.wanted[0][2]}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"


def _cached(folder: Path) -> tuple[Path, ...]:
    """The jars of a folder, if each is there with the size that it had when it came; else none."""
    try:
        sizes: dict[str, int] = json.loads((folder / "jars.json").read_text())
        whole = all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (FileNotFoundError, NotADirectoryError):
        return ()
    return tuple(folder / name for name in sizes) if whole else ()


def _download(jars: JarSet, folder: Path) -> tuple[Path, ...]:
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        _run_ivy(jars, draft)
        found = sorted(draft.glob("*.jar"))
        (draft / "jars.json").write_text(json.dumps({jar.name: jar.stat().st_size for jar in found}))
        if folder.exists():  # what is there is damaged
            shutil.rmtree(folder)
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return tuple(folder / jar.name for jar in found)


def _run_ivy(jars: JarSet, target: Path) -> None:
    ivy = next(pyspark_jars().glob("ivy-*.jar"), None)
    if ivy is None:
        raise ToolMissing(f"there is no ivy-*.jar in {pyspark_jars()}: reinstall PySpark")
    with tempfile.TemporaryDirectory(prefix="kcr-ivy-") as work:
        settings, module = Path(work) / "settings.xml", Path(work) / "ivy.xml"
        settings.write_text(_settings(_ivy_home(jars)), encoding="utf-8")
        module.write_text(_module(jars), encoding="utf-8")
        command = [str(java()), "-cp", str(ivy), "org.apache.ivy.Main", "-settings", str(settings)]
        command += ["-ivy", str(module), "-confs", "default", "-types", "jar", "bundle"]
        command += ["-retrieve", f"{target}/[artifact]-[revision](-[classifier]).[ext]"]
        try:
            processes.run(command, "Ivy", within=DOWNLOAD_WITHIN)
        except ServiceFailed as error:
            raise _failed(jars, error.message) from error


def _failed(jars: JarSet, why: str) -> ServiceFailed:
    wanted = ", ".join(":".join(part) for part in jars.wanted)
    told = (
        f"{wanted} could not be downloaded from {repository()}: check that this address can be reached from here, or "
        f"name another Maven repository in {REPOSITORY_VARIABLE}. {why}"
    )
    # Name and password may stand in the address.
    userinfo = urlsplit(repository()).netloc.rpartition("@")[0]
    return ServiceFailed(told.replace(f"{userinfo}@", "") if userinfo else told)


def _settings(folder: Path) -> str:
    root = repository().rstrip("/") + "/"
    # Asking for sources and documentation costs two requests for each artifact, and nothing needs them.
    return f"""<ivysettings>
  <property name="ivy.maven.lookup.sources" value="false"/>
  <property name="ivy.maven.lookup.javadoc" value="false"/>
  <settings defaultResolver="repository"/>
  <caches defaultCacheDir={quoteattr(str(folder / "cache"))}/>
  <resolvers><ibiblio name="repository" m2compatible="true" root={quoteattr(root)}/></resolvers>
</ivysettings>
"""


def _module(jars: JarSet) -> str:
    dependencies = "".join(
        f"<dependency org={quoteattr(group)} name={quoteattr(artifact)} rev={quoteattr(version)} conf='default'/>"
        for group, artifact, version in jars.wanted
    )
    excludes = "".join(f"<exclude module={quoteattr(name)}/>" for name in sorted(jars.without))
    return f"""<ivy-module version="2.0">
  <info organisation="airflow-kcr" module="{jars.name}" revision="1"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>{dependencies}{excludes}</dependencies>
</ivy-module>
"""


# The Java that runs the brokers, Spark, and the download of their jars.

# For processes that live for minutes on a small machine: less compiling, fewer threads of the collector.
QUICK_START: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")


def java() -> Path:
    """Return the Java program, that of JAVA_HOME first, then that of the PATH.

    Raises:
        ToolMissing: if there is none, or it is older than what Spark and Kafka need.
        ConfigurationError: if JAVA_HOME leads nowhere.
    """
    return _sound(require_java(os.environ))


@lru_cache
def _sound(program: Path) -> Path:
    sound_java(os.environ)
    return program
