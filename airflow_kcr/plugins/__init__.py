"""The plugin: what Airflow's own user interface shows of regions.

Every process of Airflow imports this, tasks among them, so it costs nothing: the page itself is built only where
Airflow's API server runs.
"""

from __future__ import annotations

from airflow.sdk.plugins_manager import AirflowPlugin


class KcrPlugin(AirflowPlugin):
    """What this package adds to Airflow's user interface."""

    name = "kcr"
