"""What a file sink writes to, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from airflow_kcr.protocol.sinks import FileFormat
from airflow_kcr.protocol.values import GroupId, RegionName

MIB: Final = 1024 * 1024
FILE_SIZE: Final = 128 * MIB
"""Of files that are put together, where the spec names no other one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTarget:
    """One sink of a group: which folder, and in whose name."""

    region: RegionName
    group: GroupId
    sink: str
    """Its name in the spec."""

    path: str
    """A path or URI; references are filled in."""

    file_size: int = FILE_SIZE
    """Into how large files small ones are put together, in bytes; 0: they stay as they are."""

    format: FileFormat = FileFormat.PARQUET
    """What readers find beside the manifests: nothing, or a table."""

    def __str__(self) -> str:
        return f"sink {self.sink} of group {self.group}"
