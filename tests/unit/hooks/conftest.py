"""Which tests of the hooks an older Airflow can't import."""

from __future__ import annotations

from importlib.util import find_spec

# Airflow 3.1 has its metrics elsewhere, with another way to configure them.
collect_ignore = [] if find_spec("airflow.sdk.observability") else ["test_stats.py"]
