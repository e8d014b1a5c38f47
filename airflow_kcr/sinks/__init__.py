"""Sinks: where a pipeline's output becomes part of what a region promises (docs/explanation/delivery.md)."""

from __future__ import annotations
