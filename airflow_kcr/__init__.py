"""Consistent regions for Kafka consumer groups, on Airflow and Spark."""

from __future__ import annotations

__version__ = "0.1.0"
