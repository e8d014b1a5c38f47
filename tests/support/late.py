"""What Airflow calls, in its triggerer, when a run is late."""

from __future__ import annotations

from pathlib import Path
from typing import Any


async def note(context: dict[str, Any], file: str) -> None:
    """Write the DAG of a late run into a file."""
    with Path(file).open("a") as found:
        print(context["dag_run"]["dag_id"], file=found)
