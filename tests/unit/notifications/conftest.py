from __future__ import annotations

from tests.unit.sensors.conftest import driver

__all__ = ["driver"]
