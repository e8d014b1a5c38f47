"""A browser without a server: FastAPI's test client, whose choice of a library is none of our warnings."""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    # It would rather have another HTTP library than the one that Airflow brings.
    warnings.simplefilter("ignore")
    from fastapi.testclient import TestClient

__all__ = ["TestClient"]
