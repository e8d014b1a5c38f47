"""What the operators of a region have in common: which region, in which store, and how it is lent to `execute`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_kcr.hooks import contexts
from airflow_kcr.hooks.failing import translated
from airflow_kcr.hooks.kcr import KcrHook
from airflow_kcr.hooks.links import RegionLink

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import BaseOperatorLink, Context

    from airflow_kcr.api import Region


class RegionOperator(BaseOperator):
    """An operator of one region.

    Args:
        region: the region's name (templated).
        kcr_conn_id: the Airflow connection of the store (templated).
        kwargs: as for every operator.
    """

    template_fields: Sequence[str] = ("region", "kcr_conn_id")
    operator_extra_links: Sequence[BaseOperatorLink] = (RegionLink(),)
    ui_color = "#e4f0f7"

    def __init__(self, *, region: str, kcr_conn_id: str = KcrHook.default_conn_name, **kwargs: Any) -> None:  # noqa: ANN401 (Airflow's own)
        super().__init__(**kwargs)
        self.region = region
        self.kcr_conn_id = kcr_conn_id

    @cached_property
    def hook(self) -> KcrHook:
        """The store's hook; nothing is looked up or connected yet."""
        return KcrHook(self.kcr_conn_id)

    @contextmanager
    def lent(self, context: Context, reason: str = "") -> Iterator[Region]:
        """Lend the region, in the name of the run; errors become Airflow's, and the link to its page is there at once.

        Args:
            context: the task's.
            reason: why something is asked of the region, for its history.

        Raises:
            AirflowFailException: a retry can't help.
            AirflowException: it may.
        """
        RegionLink().persist(context, self.region, self.kcr_conn_id)
        with translated(), self.hook.region(self.region, contexts.requester(context, reason)) as region:
            yield region
