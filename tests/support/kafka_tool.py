"""Kafka's own `kafka-consumer-groups`, as a user would run it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from airflow_kcr.embedded.jars import KAFKA_TOOLS, resolve
from airflow_kcr.embedded.kafka import java_command

CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
TOOL = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
WITHIN = 90.0


@dataclass(frozen=True, slots=True)
class Said:
    """What the tool has said."""

    out: str
    err: str


def consumer_groups(bootstrap_servers: str, *arguments: str) -> Said:
    """Run `kafka-consumer-groups` with these arguments; one that fails is an AssertionError."""
    ran = subprocess.run(
        java_command(resolve(KAFKA_TOOLS), "-Xmx128m", TOOL, "--bootstrap-server", bootstrap_servers, *arguments),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=WITHIN,
    )
    # It tells of many errors with status 0.
    assert ran.returncode == 0, ran.stderr
    assert "Error:" not in ran.stdout + ran.stderr, ran.stdout + ran.stderr
    return Said(ran.stdout, ran.stderr)


@contextmanager
def console_consumer(bootstrap_servers: str, topic: str, group: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run `kafka-console-consumer` in a group, as a person who reads a topic does; it leaves at the end."""
    arguments = ("--bootstrap-server", bootstrap_servers, "--topic", topic, "--group", group)
    running = subprocess.Popen(
        java_command(resolve(KAFKA_TOOLS), "-Xmx128m", CONSOLE_CONSUMER, *arguments),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield running
    finally:
        running.terminate()
        running.wait(WITHIN)
