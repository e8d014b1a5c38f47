"""Jars that only tests need."""

from __future__ import annotations

from typing import Final

from airflow_kcr.embedded.jars import JarSet, shipped
from airflow_kcr.spark import session

POSTGRES_DRIVER: Final = JarSet(
    name="postgres-driver",
    coordinates=session.POSTGRES_DRIVER,
    variable="KCR_POSTGRES_JARS",
    without=frozenset({"checker-qual"}),  # annotations, for its compiler only
)


def delta() -> JarSet:
    """Return the library that Spark writes Delta tables with, without what the installed PySpark ships already."""
    return JarSet(name="delta", coordinates=session.DELTA, variable="KCR_DELTA_JARS", without=shipped())
