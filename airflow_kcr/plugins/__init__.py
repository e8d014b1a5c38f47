"""The plugin: what Airflow's own user interface shows of regions.

Every process of Airflow imports this, tasks among them, so it costs nothing: only the API server asks for the page,
which is built then.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from airflow.providers.common.compat.sdk import AirflowPlugin, conf

from airflow_kcr.hooks.connections import DEFAULT_CONNECTION
from airflow_kcr.hooks.links import PAGE, ROUTE, page_path

if TYPE_CHECKING:
    from fastapi import FastAPI


_BUNDLE: Final = {"bundle_url": page_path("/static/console.js")}


class KcrPlugin(AirflowPlugin):
    """What this package adds to Airflow's user interface: the console of the regions.

    It is in the menu Browse, on Airflow's home page where a region is in trouble, and a tab of DAG runs and tasks.
    """

    name = "kcr"
    react_apps = [  # noqa: RUF012 (Airflow's own; it removes what clashes with other plugins)
        # The bundle leaves a component for Airflow under each of these names.
        {"name": "Regions", "destination": "nav", "category": "browse", "url_route": ROUTE, **_BUNDLE},
        {"name": "Regions in trouble", "destination": "dashboard", "url_route": f"{ROUTE}_trouble", **_BUNDLE},
        {"name": "Checkpoint", "destination": "dag_run", "url_route": f"{ROUTE}_run", **_BUNDLE},
        {"name": "Checkpoint", "destination": "task_instance", "url_route": f"{ROUTE}_task", **_BUNDLE},
    ]

    @property
    def fastapi_apps(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The page, as Airflow mounts it."""
        return [{"name": "Kafka Consistent Regions", "url_prefix": PAGE, "app": self._page}]

    @cached_property
    def _page(self) -> FastAPI:
        from airflow_kcr.hooks.kcr import KcrHook
        from airflow_kcr.plugins.page import build_page

        return build_page({name: KcrHook(name).opened for name in shown_connections()}, KcrHook().cluster)


def shown_connections() -> tuple[str, ...]:
    """Return the connections of the stores that the page shows, as `[kcr] page_conn_ids` names them, each once."""
    named = conf.get("kcr", "page_conn_ids", fallback="") or ""
    found = dict.fromkeys(part.strip() for part in named.split(",") if part.strip())
    return tuple(found) or (DEFAULT_CONNECTION,)
