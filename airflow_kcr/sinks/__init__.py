"""Sinks: where a pipeline's output becomes part of what a region promises (docs/explanation/delivery.md).

One room for the kinds of the spec: `postgres`, `files`, `iceberg`, `delta` and `custom`, registered in `kinds`;
`tables` is what the tables of people have in common, whatever their format.
`contract` is what they have in common, `group` the sinks of a group from its spec, `outputs` what they have written.
For users: `read_checkpoint` and `clean_checkpoints` here, `airflow_kcr.sinks.custom` for a sink of their own.

Importing this package costs nothing; what is named is imported then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_kcr.sinks.outputs import clean_checkpoints
    from airflow_kcr.sinks.reading import read_checkpoint

__all__ = ["clean_checkpoints", "read_checkpoint"]


def __getattr__(name: str) -> object:
    """Import what is named."""
    if name == "read_checkpoint":
        from airflow_kcr.sinks.reading import read_checkpoint

        return read_checkpoint
    if name == "clean_checkpoints":
        from airflow_kcr.sinks.outputs import clean_checkpoints

        return clean_checkpoints
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
