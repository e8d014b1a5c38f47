"""Numbers that leave the process: every metric declared once, and an exporter for all regions of a store."""

from __future__ import annotations
