"""The links beside a task: to its region's page, and to the Spark application's own page.

A region's link has its name, not its id: the page is of the region that has the name when it is opened.

Airflow asks for a link when the task has ended, so a task that still runs or waits would have none. The operators
therefore `persist` theirs as soon as they know it, under the key that Airflow reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeGuard
from urllib.parse import quote, urlsplit

from airflow.providers.common.compat.sdk import conf
from airflow.sdk import BaseOperatorLink

from airflow_kcr.hooks.connections import DEFAULT_CONNECTION

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context
    from airflow.sdk.types import TaskInstanceKey

PAGE: Final = "/kcr"
"""Where the plugin's page is, below Airflow's own address."""

ROUTE: Final = "kcr"
"""Where Airflow shows the console: `/plugin/kcr`."""


def page_path(place: str) -> str:
    """Return the way to a place of the page, from the root of the server; Airflow may be below a path of its own.

    Args:
        place: begins with `/`.
    """
    return _below_airflow(f"{PAGE}{place}")


def _below_airflow(path: str) -> str:
    below = urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/")
    return f"{below}{path}"


def region_path(region: str, kcr_conn_id: str = DEFAULT_CONNECTION) -> str:
    """Return the way to a region's page in the console, within Airflow's own pages.

    Args:
        region: its name.
        kcr_conn_id: the connection of its store.
    """
    return _below_airflow(f"/plugin/{ROUTE}/{region_place(region, kcr_conn_id)}")


def region_place(region: str, kcr_conn_id: str) -> str:
    """Return where a region is within the page, as an address that is relative to it; nothing in it leads elsewhere."""
    place = f"regions/{quote(region, safe='')}"
    return place if kcr_conn_id == DEFAULT_CONNECTION else f"stores/{quote(kcr_conn_id, safe='')}/{place}"


def is_literal(name: object) -> TypeGuard[str]:
    """Whether a name is known: a text that is not empty, and no template any more."""
    return isinstance(name, str) and name != "" and "{{" not in name and "{%" not in name


class RegionLink(BaseOperatorLink):
    """To the page of the operator's region."""

    @property
    def name(self) -> str:
        """The label of the button."""
        return "Region"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the way to the page; empty where its region or connection isn't known."""
        region, store = getattr(operator, "region", None), getattr(operator, "kcr_conn_id", None)
        return region_path(region, store) if is_literal(region) and is_literal(store) else ""

    def persist(self, context: Context, region: str, kcr_conn_id: str = DEFAULT_CONNECTION) -> None:
        """Show the link from now on.

        Args:
            context: the task's.
            region: the region's name.
            kcr_conn_id: the connection of its store.
        """
        context["ti"].xcom_push(key=self.xcom_key, value=region_path(region, kcr_conn_id))


class SparkUiLink(BaseOperatorLink):
    """To the page of the Spark application that a task has started."""

    @property
    def name(self) -> str:
        """The label of the button."""
        return "Spark UI"

    @property
    def xcom_key(self) -> str:
        """The key that the address is kept under, and read from."""
        return "kcr_spark_ui"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the address that was persisted; empty if there is none."""
        from airflow.sdk.execution_time.xcom import XCom

        found = XCom.get_value(ti_key=ti_key, key=self.xcom_key)
        return found if isinstance(found, str) else ""

    def persist(self, context: Context, address: str) -> None:
        """Show the link from now on.

        Args:
            context: the task's.
            address: of the application's page, as its driver has said it.
        """
        context["ti"].xcom_push(key=self.xcom_key, value=address)
