"""What several tests need: import it as `tests.support`."""

from __future__ import annotations
