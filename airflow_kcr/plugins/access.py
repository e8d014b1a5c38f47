"""Who may see the page: whoever may see DAG runs.

An application that a plugin adds is open to everybody unless each of its routes asks. How Airflow answers is no public
interface of it, so nobody else uses it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import requires_access_dag
from fastapi import Depends

if TYPE_CHECKING:
    from fastapi.params import Depends as Dependency


def may_look() -> Dependency:
    """Return what a route depends on that only shows something: 401 for who is nobody, 403 for who may not look."""
    found: Dependency = Depends(requires_access_dag("GET", DagAccessEntity.RUN))
    return found
