"""This provider's metadata for Airflow; every process of Airflow reads it, so next to nothing is imported for it."""

from __future__ import annotations

from typing import Any, Final

from airflow_kcr.hooks.connections import DEFAULT_CONNECTION, SSL_MODES, STORE_TYPE

INTEGRATION: Final = "Kafka Consistent Regions"

_OPERATORS: Final = ("checkpoint", "consume", "interval", "run_members", "recompute", "region", "reset", "watch")
_SENSORS: Final = ("region",)


def get_provider_info() -> dict[str, Any]:
    """Return the provider's metadata, as Airflow's schema of it has it."""
    return {
        "package-name": "airflow-kcr",
        "name": INTEGRATION,
        "description": "Consistent regions for Kafka consumer groups: drain, checkpoint and reset several as one.",
        "integrations": [{"integration-name": INTEGRATION, "tags": ["software"]}],
        "operators": [_modules("operators", *_OPERATORS)],
        "sensors": [_modules("sensors", *_SENSORS)],
        "hooks": [_modules("hooks", "kcr")],
        "triggers": [_modules("triggers", "waits")],
        "notifications": ["airflow_kcr.notifications.region.KcrRegionNotifier"],
        "connection-types": [_connection_type()],
        "extra-links": ["airflow_kcr.hooks.links.RegionLink", "airflow_kcr.hooks.links.SparkUiLink"],
        "asset-uris": [
            {
                "schemes": ["kcr"],
                "handler": "airflow_kcr.hooks.assets.sanitize_uri",
                "factory": "airflow_kcr.hooks.assets.create_asset",
            }
        ],
        # The plugin has an entry point of its own. Named here as well it would be loaded twice, and Airflow then drops
        # every plugin of other providers that comes after it.
        "config": {"kcr": _configuration()},
    }


def _modules(package: str, *names: str) -> dict[str, Any]:
    return {"integration-name": INTEGRATION, "python-modules": [f"airflow_kcr.{package}.{name}" for name in names]}


def _connection_type() -> dict[str, Any]:
    return {
        "connection-type": STORE_TYPE,
        "hook-class-name": "airflow_kcr.hooks.kcr.KcrHook",
        "hook-name": INTEGRATION,
        "ui-field-behaviour": {
            "hidden-fields": [],
            "relabeling": {"host": "Postgres host", "schema": "Database", "login": "User"},
            "placeholders": {"host": "db.example.com", "port": "5432", "schema": "kcr", "login": "kcr"},
        },
        "conn-fields": {
            "sslmode": {
                "label": "SSL mode",
                "description": "How the connection to Postgres is encrypted, as libpq has it; without it: prefer.",
                "schema": {"type": ["string", "null"], "enum": list(SSL_MODES), "default": "prefer"},
            },
            "sslrootcert": {
                "label": "SSL root certificate",
                "description": "The file with the certificate authorities that verify-ca and verify-full trust.",
                "schema": {"type": ["string", "null"]},
            },
            "connect_timeout": {
                "label": "Connect timeout",
                "description": "Seconds in which the server has to answer a new connection; without it: 10.",
                "schema": {"type": ["integer", "null"], "minimum": 1},
            },
        },
    }


def _configuration() -> dict[str, Any]:
    return {
        "description": "How tasks wait for regions, how applications end, and what the page of the regions shows.",
        "options": {
            "poll_interval": _number(
                "1.0", "Seconds between two polls of the store, for all tasks that wait in a triggerer."
            ),
            "task_gone_drain": _number(
                "30",
                "Seconds that a Spark application may take to drain after its task has gone, before it just stops.",
            ),
            "page_conn_ids": {
                "description": "The connections of the stores whose regions the page Browse, Regions shows, by commas.",
                "version_added": "0.1.0",
                "type": "string",
                "example": "kcr_default,team_kcr",
                "default": DEFAULT_CONNECTION,
            },
        },
    }


def _number(default: str, description: str) -> dict[str, Any]:
    return {
        "description": description,
        "version_added": "0.1.0",
        "type": "float",
        "example": None,
        "default": default,
    }
