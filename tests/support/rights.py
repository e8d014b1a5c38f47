"""A broker with an authorizer, what a client may do there, and the page that lists what it needs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from airflow_kcr.embedded.processes import happened
from tests.support.kafka import WITHIN, KafkaSet

Right: TypeAlias = tuple[ResourceType, AclOperation]

USER, PASSWORD = "flights", "correct-horse"
AUTHORIZER: Final = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
"""A client without a password is the broker's administrator."""

LOGIN: Final = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": USER}

READ, DESCRIBE, CONFIGS = AclOperation.READ, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS
ON_TOPIC, ON_GROUP, ON_CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.BROKER
ENOUGH: Final[frozenset[Right]] = frozenset({(ON_TOPIC, READ), (ON_GROUP, READ)})

PAGE: Final = Path(__file__).parents[2] / "docs" / "reference" / "rights.md"
_RESOURCES: Final = {"topic": ON_TOPIC, "group": ON_GROUP, "cluster": ON_CLUSTER}
_ROW: Final = re.compile(
    r"^\| (?P<client>control consumer|admin client|executors)[^|]*\| (?P<resource>[a-z]+)[^|]*"
    r"\| `(?P<operation>[A-Z_]+)`[^|]*\|[^|]+\|(?P<without>[^|]*)\|$",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the page: a right that a client needs, and what it sees without."""

    client: str
    right: Right
    without: tuple[str, ...]
    """What the page shows as code."""

    @property
    def others(self) -> frozenset[Right]:
        """Everything that is needed, but this right; what it includes is left."""
        resource, operation = self.right
        left = {(resource, DESCRIBE)} if operation is READ else set()
        return ENOUGH - {(resource, READ)} | left if resource is not ON_CLUSTER and operation is not CONFIGS else ENOUGH

    def __str__(self) -> str:
        resource, operation = self.right
        return f"{self.client}, {operation.name} of {resource.name.lower()}"


def listed() -> tuple[Row, ...]:
    """Return the rows of the page."""
    return tuple(
        Row(
            client=row["client"],
            right=(_RESOURCES[row["resource"]], AclOperation[row["operation"]]),
            without=tuple(re.findall(r"`([^`]+)`", row["without"])),
        )
        for row in _ROW.finditer(PAGE.read_text())
    )


def grant(kafka: KafkaSet, rights: frozenset[Right], *, topic: str, group: str) -> None:
    """Give `USER` these rights on a topic and a group, and no others, and wait until the broker goes by them."""
    anybody: Any = None
    everything = AclBindingFilter(
        ResourceType.ANY, anybody, ResourcePatternType.ANY, anybody, anybody, AclOperation.ANY, AclPermissionType.ANY
    )
    for deleted in kafka.admin.delete_acls([everything]).values():
        deleted.result(WITHIN)
    names = {ON_TOPIC: topic, ON_GROUP: group, ON_CLUSTER: "kafka-cluster"}
    wanted = [_binding(resource, names[resource], operation) for resource, operation in rights]
    for made in kafka.admin.create_acls(wanted).values() if wanted else ():
        made.result(WITHIN)
    # The one broker is its own controller, so what it lists is what its authorizer goes by.
    if not happened(lambda: set(kafka.admin.describe_acls(everything).result(WITHIN)) == set(wanted), within=WITHIN):
        raise TimeoutError(f"the rights were not granted within {WITHIN:g} s")


def _binding(resource: ResourceType, name: str, operation: AclOperation) -> AclBinding:
    literal, allowed = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
    return AclBinding(resource, name, literal, f"User:{USER}", "*", operation, allowed)
