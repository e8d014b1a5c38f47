"""Kafka's own tools, as a user would run them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from airflow_kcr.embedded.jars import KAFKA_BROKER, JarSet
from airflow_kcr.embedded.servers import java_command
from tests.support.jar_sets import KAFKA_TOOLS

CONSOLE_SHARE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleShareConsumer"
FEATURES = "org.apache.kafka.tools.FeatureCommand"
CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
CONFIGS = "kafka.admin.ConfigCommand"
TOOL = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
WITHIN = 90.0


def consumer_groups(bootstrap_servers: str, *arguments: str) -> str:
    """Return what `kafka-consumer-groups` says with these arguments; one that fails is an AssertionError."""
    return _ran(TOOL, bootstrap_servers, *arguments)


def allow_share_groups(bootstrap_servers: str) -> None:
    """Switch share groups on where a new cluster has them off, as in Kafka 4.1; it may have a later level."""
    found = _ran(FEATURES, bootstrap_servers, "describe")
    if not re.search(r"share\.version\t.*FinalizedVersionLevel: [1-9]", found):
        allow(bootstrap_servers, "share.version=1")


def allow(bootstrap_servers: str, feature: str) -> None:
    """Switch a feature of the cluster on, as `share.version=1`."""
    _ran(FEATURES, bootstrap_servers, "upgrade", "--feature", feature)


@contextmanager
def slowed(bootstrap_servers: str, entity: str, name: str = "") -> Iterator[Callable[[int], None]]:
    """Let set a quota of bytes per second for what a client or user reads, as often as wanted; gone at the end.

    Args:
        bootstrap_servers: of the cluster.
        entity: `clients` or `users`.
        name: which; without one, all that have no quota of their own.
    """
    whose = ("--alter", "--entity-type", entity, *(("--entity-name", name) if name else ("--entity-default",)))

    def quota(rate: int) -> None:
        _ran(CONFIGS, bootstrap_servers, *whose, "--add-config", f"consumer_byte_rate={rate}", jars=KAFKA_BROKER)

    try:
        yield quota
    finally:
        _ran(CONFIGS, bootstrap_servers, *whose, "--delete-config", "consumer_byte_rate", jars=KAFKA_BROKER)


def _ran(tool: str, bootstrap_servers: str, *arguments: str, jars: JarSet = KAFKA_TOOLS) -> str:
    ran = subprocess.run(
        java_command(jars, "-Xmx128m", tool, "--bootstrap-server", bootstrap_servers, *arguments),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=WITHIN,
    )
    # It tells of many errors with status 0.
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "Error:" not in ran.stdout + ran.stderr, ran.stdout + ran.stderr
    return ran.stdout


@contextmanager
def console_consumer(
    bootstrap_servers: str, topic: str, group: str, *, tool: str = CONSOLE_CONSUMER
) -> Iterator[subprocess.Popen[bytes]]:
    """Run `kafka-console-consumer` in a group, as a person who reads a topic does; it leaves at the end."""
    running = subprocess.Popen(
        java_command(
            KAFKA_TOOLS,
            "-Xmx128m",
            tool,
            *("--bootstrap-server", bootstrap_servers, "--topic", topic, "--group", group),
        ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield running
    finally:
        running.terminate()
        running.wait(WITHIN)
