"""Consistent regions for Kafka consumer groups, on Airflow and Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_kcr.api import Region as Region

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Load the Python API on first use: importing another part of the package doesn't import it."""
    if name == "Region":
        from airflow_kcr.api import Region

        return Region
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
