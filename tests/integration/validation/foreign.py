"""Consumers as they are: the region's members and those of others, each joined to its group and polled by the test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from confluent_kafka import Consumer, TopicPartition

from airflow_kcr.embedded.processes import happened
from airflow_kcr.kafka.settings import client_id, instance_id
from airflow_kcr.protocol.values import MemberId, RegionName

WITHIN = 30.0


@dataclass
class Crowd:
    """Consumers of one broker. None of them makes progress unless all are polled, so waiting polls them all."""

    bootstrap_servers: str
    consumers: dict[str, Consumer] = field(default_factory=dict)

    def join(self, name: str, group: str, *topics: str, **settings: str | int) -> None:
        """Let a consumer subscribe; it is in the group when `assigned` says so."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "log_level": 0,
                **{key.replace("_", "."): value for key, value in settings.items()},
            }
        )
        consumer.subscribe(list(topics))
        self.consumers[name] = consumer

    def join_member(self, region: RegionName, member: MemberId, *topics: str, static: bool = True) -> None:
        """Let a member of the region join, by the names that its control consumer has."""
        named: dict[str, str | int] = {"client_id": client_id(region, member)}
        if static:
            named |= {"group_instance_id": instance_id(region, member), "session_timeout_ms": 30_000}
        self.join(str(member), member.group, *topics, partition_assignment_strategy="range", **named)

    def leave(self, name: str) -> None:
        """Let a consumer leave its group for good."""
        consumer = self.consumers.pop(name)
        consumer.unsubscribe()
        if not happened(lambda: consumer.poll(0.05) is None and not consumer.assignment(), within=WITHIN):
            raise TimeoutError(f"{name} did not leave")
        consumer.close()

    def vanish(self, name: str) -> None:
        """Close a consumer; a static one keeps its slot."""
        self.consumers.pop(name).close()

    def assigned(self) -> Mapping[str, frozenset[tuple[str, int]]]:
        """Poll every consumer once, and return who owns what."""
        for consumer in self.consumers.values():
            consumer.poll(0.02)
        return {
            name: frozenset((p.topic, p.partition) for p in consumer.assignment())
            for name, consumer in self.consumers.items()
        }

    def settle(self, *partitions: tuple[str, int]) -> None:
        """Poll until these partitions are owned, each once, and every consumer owns some."""

        def settled() -> bool:
            held = self.assigned().values()
            return all(held) and sorted(p for own in held for p in own) == sorted(partitions)

        if not happened(settled, within=WITHIN):
            raise TimeoutError(f"{sorted(partitions)} are not owned by everybody: {self.assigned()}")

    def commit(self, name: str, topic: str, offset: int) -> None:
        """Commit an offset of the topic's first partition."""
        self.consumers[name].commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)

    def close(self) -> None:
        """Close every consumer."""
        for consumer in self.consumers.values():
            consumer.close()
