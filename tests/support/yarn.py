"""YARN on this machine: a resource manager and one node manager, from the jar that Hadoop ships for mini clusters.

They are the daemons themselves, with their own main classes, each in a process of its own. Files are those of this
machine: there is no HDFS, and what a client uploads for an application is copied to a folder.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.request import urlopen

from airflow_kcr.embedded.jars import QUICK_START, JarSet, java, pyspark_jars, resolve
from airflow_kcr.embedded.processes import Program, ServiceProcess, free_port
from airflow_kcr.embedded.servers import spark_environment
from tests.support.server_process import write_hadoop_settings
from tests.support.spark_executors import java_below
from tests.support.tied import start_tied

RESOURCE_MANAGER = "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager"
NODE_MANAGER = "org.apache.hadoop.yarn.server.nodemanager.NodeManager"
APPLICATION_CLI = "org.apache.hadoop.yarn.client.cli.ApplicationCLI"
APPLICATION_MASTER = "org.apache.spark.deploy.yarn.ApplicationMaster"
EXECUTOR = "org.apache.spark.executor.YarnCoarseGrainedExecutorBackend"

BOUNCY_CASTLE = "org.bouncycastle:bcpkix-jdk18on:1.78.1"
"""The resource manager needs it, and the jar leaves it out."""

JAXB = "javax.xml.bind:jaxb-api:2.3.1"

READY_WITHIN = 240.0
ANSWER_WITHIN = 10.0


def minicluster_jars() -> tuple[Path, ...]:
    """Return the daemons' jars, of the Hadoop that the installed PySpark is a client of."""
    (api,) = pyspark_jars().glob("hadoop-client-api-*.jar")
    version = api.stem.removeprefix("hadoop-client-api-")
    wanted = JarSet(
        name="yarn",
        coordinates=f"org.apache.hadoop:hadoop-client-minicluster:{version},{BOUNCY_CASTLE},{JAXB}",
        variable="KCR_YARN_JARS",
        # PySpark has these.
        without=frozenset({"hadoop-client-api", "hadoop-client-runtime"}),
    )
    return resolve(wanted)


@dataclass(slots=True, kw_only=True)
class YarnCluster:
    """A resource manager and a node manager."""

    folder: Path
    ports: Mapping[str, int]
    secrets: Mapping[str, str] = field(repr=False)
    manager: ServiceProcess | None = field(default=None, repr=False)
    node: ServiceProcess | None = field(default=None, repr=False)

    @property
    def configuration(self) -> Path:
        """The folder that clients name in HADOOP_CONF_DIR."""
        return self.folder / "conf"

    @property
    def settings(self) -> dict[str, str]:
        """What an application sets, so that it fits on this machine and is tried once."""
        return {
            "spark.yarn.jars": f"local:{pyspark_jars()}/*",
            "spark.yarn.stagingDir": f"file://{self.folder}/staging",
            "spark.yarn.maxAppAttempts": "1",
            "spark.driver.memory": "512m",
            "spark.driver.memoryOverhead": "384m",
            "spark.driver.extraJavaOptions": " ".join(QUICK_START),
            "spark.executor.extraJavaOptions": " ".join(QUICK_START),
            "spark.executor.instances": "1",
            "spark.executor.cores": "2",
            "spark.executor.memory": "512m",
            "spark.ui.port": "0",
        }

    def start(self) -> None:
        """Start both, and wait until they have found each other."""
        self.configuration.mkdir(parents=True)
        (self.folder / "staging").mkdir()
        core = {"fs.defaultFS": "file:///", "hadoop.tmp.dir": f"{self.folder}/tmp"}
        queues = {
            "yarn.scheduler.capacity.root.queues": "default",
            "yarn.scheduler.capacity.root.default.capacity": "100",
            "yarn.scheduler.capacity.maximum-am-resource-percent": "1",
        }
        for name, settings in (("core-site", core), ("yarn-site", self._site()), ("capacity-scheduler", queues)):
            write_hadoop_settings(self.configuration / f"{name}.xml", settings)
        self.manager = self._spawn("resource manager", RESOURCE_MANAGER, {})
        manager = self.manager
        manager.wait_until(self._answers, within=READY_WITHIN)
        self.node = self._spawn("node manager", NODE_MANAGER, self.secrets)
        self.node.wait_until(self._has_node, within=READY_WITHIN)

    def stop(self) -> None:
        """Stop the node with all that runs on it, then the resource manager."""
        left = self.processes(APPLICATION_MASTER) + self.processes(EXECUTOR)
        for child in (self.node, self.manager):
            if child is not None:
                child.stop()
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def final_status(self, application: str) -> str | None:
        """Return how an application ended, SUCCEEDED, FAILED or KILLED, by the summary in the log; None: it has not."""
        log = (self.folder / "resource-manager.log").read_text(errors="replace")
        summary = re.search(rf"appId={application},.*\bfinalStatus=(\w+)", log)
        return summary and summary[1]

    def kill(self, application: str) -> None:
        """Kill an application, as an administrator does with `yarn application -kill`."""
        self._yarn("application", "-kill", application)

    def shut_down(self, application: str) -> None:
        """Send SIGTERM to a driver's container, as `yarn container -signal … GRACEFUL_SHUTDOWN` does."""
        attempts = self._asked(f"apps/{application}/appattempts")["appAttempt"]
        assert isinstance(attempts, list)
        (container,) = (attempt["containerId"] for attempt in attempts)
        self._yarn("container", "-signal", container, "GRACEFUL_SHUTDOWN")

    def _yarn(self, *arguments: str) -> None:
        command = [str(java()), *QUICK_START, "-cp", self._classpath, APPLICATION_CLI, *arguments]
        subprocess.run(command, env=spark_environment(), capture_output=True, timeout=READY_WITHIN, check=True)

    def processes(self, main: str) -> list[int]:
        """Return the Java processes of the containers that run a class; not the shells around them."""
        return [] if self.node is None else java_below(self.node.pid, main)

    def said(self, application: str) -> str:
        """What the containers of an application wrote, with the scripts that started them."""
        files = sorted((self.folder / "logs" / application).rglob("*"))
        return "\n".join(file.read_text(errors="replace") for file in files if file.is_file())

    def _site(self) -> dict[str, str]:
        port = self.ports
        return {
            "yarn.resourcemanager.hostname": "127.0.0.1",
            "yarn.resourcemanager.address": f"127.0.0.1:{port['manager']}",
            "yarn.resourcemanager.scheduler.address": f"127.0.0.1:{port['scheduler']}",
            "yarn.resourcemanager.resource-tracker.address": f"127.0.0.1:{port['tracker']}",
            "yarn.resourcemanager.admin.address": f"127.0.0.1:{port['admin']}",
            "yarn.resourcemanager.webapp.address": f"127.0.0.1:{port['manager page']}",
            "yarn.resourcemanager.am.max-attempts": "2",
            "yarn.nodemanager.hostname": "127.0.0.1",
            "yarn.nodemanager.address": f"127.0.0.1:{port['node']}",
            "yarn.nodemanager.localizer.address": f"127.0.0.1:{port['localizer']}",
            "yarn.nodemanager.webapp.address": f"127.0.0.1:{port['node page']}",
            "yarn.nodemanager.collector-service.address": f"127.0.0.1:{port['collector']}",
            "yarn.nodemanager.local-dirs": f"{self.folder}/local",
            "yarn.nodemanager.log-dirs": f"{self.folder}/logs",
            "yarn.nodemanager.resource.memory-mb": "4096",
            "yarn.nodemanager.resource.cpu-vcores": "8",
            "yarn.scheduler.minimum-allocation-mb": "128",
            "yarn.nodemanager.pmem-check-enabled": "false",
            "yarn.nodemanager.vmem-check-enabled": "false",
            "yarn.nodemanager.disk-health-checker.enable": "false",
            "yarn.nodemanager.delete.debug-delay-sec": "3600",
            "yarn.nodemanager.env-whitelist": ",".join(("JAVA_HOME", "HADOOP_CONF_DIR", *self.secrets)),
        }

    def _spawn(self, name: str, main: str, secrets: Mapping[str, str]) -> ServiceProcess:
        log4j = self.folder / "log4j2.properties"
        log4j.write_text(
            "rootLogger.level = info\nrootLogger.appenderRef.out.ref = out\n"
            "appender.out.type = Console\nappender.out.name = out\nappender.out.layout.type = PatternLayout\n"
            "appender.out.layout.pattern = %d %p %c{1}: %m%n%ex\n"
        )
        options = ("-Xmx256m", "--add-opens=java.base/java.lang=ALL-UNNAMED", f"-Dlog4j2.configurationFile={log4j}")
        program = Program(
            name=f"YARN's {name}",
            command=[str(java()), *QUICK_START, *options, "-cp", self._classpath, main],
            log=self.folder / f"{name.replace(' ', '-')}.log",
            env={**spark_environment(), "HADOOP_CONF_DIR": str(self.configuration), **secrets},
        )
        return start_tied(program)

    @property
    def _classpath(self) -> str:
        return ":".join([str(self.configuration), *map(str, minicluster_jars()), f"{pyspark_jars()}/*"])

    @property
    def _address(self) -> str:
        return f"http://127.0.0.1:{self.ports['manager page']}/ws/v1/cluster"

    def _asked(self, what: str) -> Mapping[str, object]:
        with urlopen(f"{self._address}/{what}", timeout=ANSWER_WITHIN) as answer:
            # All answers are objects with one entry, which says what the answer is.
            (found,) = json.loads(answer.read()).values()
            told: dict[str, object] = found
            return told

    def _answers(self) -> bool:
        try:
            return self._asked("info")["state"] == "STARTED"
        except OSError:
            return False

    def _has_node(self) -> bool:
        return self._asked("metrics")["activeNodes"] == 1


@contextmanager
def yarn_cluster(folder: Path, secrets: Mapping[str, str]) -> Iterator[YarnCluster]:
    """Lend a cluster.

    Args:
        folder: where its configuration, its logs and its containers go.
        secrets: what the node manager has in its environment, and gives to the containers.

    Raises:
        ServiceFailed: with the end of its log, if a part does not start.
    """
    names = ("manager", "scheduler", "tracker", "admin", "manager page", "node", "localizer", "node page", "collector")
    cluster = YarnCluster(folder=folder, ports={name: free_port() for name in names}, secrets=secrets)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
