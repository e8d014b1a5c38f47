"""Sinks: where a pipeline's output becomes part of what a region promises (design section 12)."""

from __future__ import annotations
