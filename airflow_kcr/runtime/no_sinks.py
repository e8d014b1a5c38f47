"""The sinks of a pipeline that has none of ours: it writes where it likes, and the ledger counts what was discarded."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.protocol.delivery import Delivery
from airflow_kcr.protocol.member.effects import ResetSinks
from airflow_kcr.protocol.rules import GroupRules
from airflow_kcr.protocol.values import CheckpointNumber, GroupPartition, Offset


class NoSinks:
    """Nothing to fence, to roll back or to publish.

    Args:
        group: whose pipeline it is.

    Raises:
        ConfigurationError: its delivery needs a sink that stores progress together with the output.
    """

    def __init__(self, group: GroupRules) -> None:
        if group.delivery is Delivery.EXACTLY_ONCE:
            raise ConfigurationError(
                f"group {group.group_id}: delivery exactly_once needs one transactional sink, which stores progress "
                "with the output, and its pipeline has none; choose at_least_once, almost_once or at_most_once"
            )

    @property
    def fenced(self) -> bool:
        """Never: what a zombie writes is for the pipeline's own target to refuse."""
        return False

    def reset(self, order: ResetSinks) -> Mapping[GroupPartition, Offset | None]:
        """Nothing is known, so nothing is answered."""
        return {}

    def prepare(self, sequence: CheckpointNumber) -> None:
        """Nothing is held back."""

    def publish(self, sequence: CheckpointNumber) -> None:
        """Everything is there already."""
