"""Loads the browser first: Airflow's API server loads the same library, and warns of it."""

from __future__ import annotations

from tests.support import browsing

__all__ = ["browsing"]
