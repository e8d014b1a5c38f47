"""Operators: what a DAG does with a region. One module for each, so that a DAG file loads only those that it names."""

from __future__ import annotations
