"""What a process has: objects by type, threads, open files, memory. Two of them tell whether something grows."""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import psutil

CHANCE: Final = 250
"""Objects of one type that may be on their way when a process is counted, by chance."""

SLACK: Final = 16 * 1024 * 1024
"""Bytes that a process may hold more by chance: what its heap keeps in pieces, pools of threads."""


CONNECTIONS: Final = 2
"""Files that there may be more of by chance: a pool opens a connection when as many threads need one for the first time
at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """What a process has, at one moment."""

    objects: Mapping[str, int]
    """That the garbage collector knows of, by their type's full name."""

    held: int
    """Objects that they refer to, over all containers: a container that grows has one more for each entry."""

    blocks: int
    """Of memory that Python has allocated."""

    threads: tuple[str, ...]
    files: int
    rss: int
    """Bytes."""

    children: tuple[int, ...]
    """Bytes of each process that it has started, smallest first."""

    def growth_since(self, before: Footprint) -> dict[str, int]:
        """Return what there is more of than chance explains, by what it is; empty: nothing grows."""
        more = {kind: number - before.objects.get(kind, 0) for kind, number in self.objects.items()}
        grown = {kind: number for kind, number in more.items() if number > CHANCE}
        kept = {
            "references of containers": self.held - before.held - 10 * CHANCE,
            "threads": len(self.threads) - len(before.threads),
            "files": self.files - before.files - CONNECTIONS,
            "bytes": self.rss - before.rss - SLACK,
            "processes": len(self.children) - len(before.children),
            "bytes of other processes": sum(self.children) - sum(before.children) - SLACK,
        }
        return grown | {what: number for what, number in kept.items() if number > 0}

    def __str__(self) -> str:
        return (
            f"{self.rss / 1024**2:.1f} MiB, {self.blocks} blocks, {self.held} references, {len(self.threads)} threads, "
            f"{self.files} files, {len(self.children)} other processes of {sum(self.children) / 1024**2:.1f} MiB"
        )


def footprint() -> Footprint:
    """Return what this process has."""
    gc.collect()
    with _alone():
        known = gc.get_objects()
        kinds = Counter(f"{type(one).__module__}.{type(one).__qualname__}" for one in known)
        held = sum(len(gc.get_referents(one)) for one in known)
        del known
    process = psutil.Process()
    return Footprint(
        objects=dict(kinds),
        held=held,
        blocks=sys.getallocatedblocks(),
        threads=tuple(sorted(thread.name for thread in threading.enumerate())),
        files=process.num_fds(),
        rss=process.memory_info().rss,
        children=tuple(sorted(child.memory_info().rss for child in process.children(recursive=True))),
    )


@contextmanager
def _alone() -> Iterator[None]:
    """Let no other thread run Python meanwhile: a tuple that one is making must not be referred to, or it fails."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(10.0)
    try:
        # Waits that run already last as long as was usual; the next one is the new one.
        time.sleep(4 * usual)
        yield
    finally:
        sys.setswitchinterval(usual)
