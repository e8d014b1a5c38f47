"""An auth manager of Airflow that knows rights to single DAGs, which the simple one does not."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

if TYPE_CHECKING:
    from airflow.api_fastapi.auth.managers.models.resource_details import DagDetails
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

OWNER_VARIABLE: Final = "KCR_TEST_OWNER"
"""Names the user who may see one DAG and what belongs to it, and no other."""

OWN_VARIABLE: Final = "KCR_TEST_OWN_DAG"
"""Names that DAG."""


class OwnDags(SimpleAuthManager):
    """The simple auth manager, but for one user."""

    def is_authorized_dag(
        self,
        *,
        user: SimpleAuthManagerUser,
        details: DagDetails | None = None,
        **asked: Any,  # noqa: ANN401 (Airflow's own)
    ) -> bool:
        if user.username == os.environ[OWNER_VARIABLE]:
            return details is not None and details.id == os.environ[OWN_VARIABLE]
        return super().is_authorized_dag(user=user, details=details, **asked)
