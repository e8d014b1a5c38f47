"""Which Airflow is installed, by its number: what tests of its pages go by, which no class of it tells."""

from __future__ import annotations

import re
from importlib import metadata
from typing import Final

from airflow_kcr.airflow_features import Feature, missing

INSTALLED: Final = tuple(int(part) for part in re.findall(r"\d+", metadata.version("apache-airflow"))[:2])


def lacks(feature: Feature) -> bool:
    """Whether the installed Airflow is too old for a feature."""
    return feature in missing(INSTALLED)
