"""Sensors: what a DAG waits for without asking for it. One module each: a DAG file loads only what it names."""

from __future__ import annotations
