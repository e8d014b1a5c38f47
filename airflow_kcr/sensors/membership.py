"""Waits for a region's members."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_kcr.sensors.base import RegionSensor
from airflow_kcr.triggers.payloads import MembershipHealthy

if TYPE_CHECKING:
    from airflow.sdk import Context


class KcrMembershipSensor(RegionSensor):
    """Waits until every member of the spec is there, and every check of `kcr group validate` is all right.

    Kafka is asked, at most every ten seconds, with an admin's calls: nobody joins the group.

    Args:
        groups: which of the region's groups, by their ids (templated); None: all.
        kwargs: as for every sensor; `region`, `kcr_conn_id` and `deferrable` among them.
    """

    template_fields = (*RegionSensor.template_fields, "groups")

    def __init__(self, *, groups: Sequence[str] | None = None, **kwargs: Any) -> None:  # noqa: ANN401 (Airflow's own)
        super().__init__(**kwargs)
        self.groups = groups

    def waiting_for(self, context: Context) -> MembershipHealthy:
        """Return the groups."""
        groups = self.groups or ()
        return MembershipHealthy(groups=(groups,) if isinstance(groups, str) else tuple(groups))
