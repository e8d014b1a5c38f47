"""The tables of a region as mappings that read the store only when, and as far as, a rule asks.

A transition that touches no checkpoint loads none. Two kinds, by how a table is used:

- `Whole`: loaded as a whole at its first use; a successor is a plain dict.
- `Parts`: loaded one part at a time (one checkpoint's offsets, one bound's offsets), its keys apart from its values; a
  successor is an `Overlay` that holds the changes only, so that adding one seek map does not read all others.

Rows are read over the transaction that made the mapping, as long as it lasts, so they are those of one moment. What was
not read by then is read when it is asked for, as it is then: a mapping outlives its transaction (see `Session`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from dataclasses import dataclass, field
from typing import Generic, TypeVar, cast, overload

from airflow_kcr.protocol.region.layered import Layered

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")


class Whole(Layered[K, V]):
    """A table that is loaded as a whole, at its first use.

    Args:
        load: reads every row.
    """

    __slots__ = ("_load", "_rows")

    def __init__(self, load: Callable[[], dict[K, V]]) -> None:
        self._load = load
        self._rows: dict[K, V] | None = None

    @property
    def rows(self) -> dict[K, V]:
        """Every row; nobody changes it."""
        if self._rows is None:
            self._rows = self._load()
        return self._rows

    def __getitem__(self, key: K) -> V:
        return self.rows[key]

    def __contains__(self, key: object) -> bool:
        return key in self.rows

    def __iter__(self) -> Iterator[K]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    # Those of the dict itself: rules walk over ten thousand claims many times in one decision.

    @overload
    def get(self, key: K, /) -> V | None: ...
    @overload
    def get(self, key: K, default: V | D, /) -> V | D: ...
    def get(self, key: K, default: object = None, /) -> object:
        """See `Mapping.get`."""
        return self.rows.get(key, default)

    def keys(self) -> KeysView[K]:
        """See `Mapping.keys`."""
        return self.rows.keys()

    def values(self) -> ValuesView[V]:
        """See `Mapping.values`."""
        return self.rows.values()

    def items(self) -> ItemsView[K, V]:
        """See `Mapping.items`."""
        return self.rows.items()

    def put(self, rows: Mapping[K, V]) -> Mapping[K, V]:
        """See `Layered.put`."""
        return {**self.rows, **rows}

    def without(self, keys: frozenset[K]) -> Mapping[K, V]:
        """See `Layered.without`."""
        return {k: v for k, v in self.rows.items() if k not in keys}


class Parts(Layered[K, V]):
    """A table that is loaded part by part.

    Args:
        keys: reads the keys of every row, without the values.
        part: tells to which part a key belongs.
        load: reads the rows of the part that a key belongs to; none where the store has none.
        load_all: reads every row at once, for who walks through them; a key that is gone since is left out.
        has: asks whether there is a key; None: all keys are read for that.
    """

    __slots__ = ("_has", "_is_complete", "_keys", "_load", "_load_all", "_part", "_parts", "_read_keys", "_rows")

    def __init__(
        self,
        *,
        keys: Callable[[], Iterable[K]],
        part: Callable[[K], Hashable],
        load: Callable[[K], Mapping[K, V]],
        load_all: Callable[[], Mapping[K, V]],
        has: Callable[[K], bool] | None = None,
    ) -> None:
        self._read_keys = keys
        self._part = part
        self._load = load
        self._load_all = load_all
        self._is_complete = False
        self._has = has
        self._keys: dict[K, None] | None = None
        self._parts: set[Hashable] = set()
        self._rows: dict[K, V] = {}

    def __getitem__(self, key: K) -> V:
        part = self._part(key)
        if part not in self._parts:
            self._rows.update(self._load(key))
            self._parts.add(part)
        return self._rows[key]

    def __contains__(self, key: object) -> bool:
        if key in self._rows:
            return True
        if self._keys is not None:
            return key in self._keys
        asked = cast("K", key)
        if self._part(asked) in self._parts:  # it was read, and the key wasn't in it
            return False
        return asked in self._all_keys if self._has is None else self._has(asked)

    def known(self, key: K) -> V | None:
        """Return the row of a key, if that was read already and is there; nothing is read for it."""
        return self._rows.get(key)

    def __iter__(self) -> Iterator[K]:
        return iter(self._all_keys)

    def __len__(self) -> int:
        return len(self._all_keys)

    @property
    def rows(self) -> dict[K, V]:
        """Every row; nobody changes it. What was read before stays as it was."""
        if not self._is_complete:
            keys, found = self._all_keys, self._load_all()
            self._rows = {key: self._rows.get(key, row) for key, row in found.items() if key in keys}
            self._parts.update(map(self._part, keys))
            self._is_complete = True
        return self._rows

    def values(self) -> ValuesView[V]:
        """See `Mapping.values`; read at once."""
        return self.rows.values()

    def items(self) -> ItemsView[K, V]:
        """See `Mapping.items`; read at once."""
        return self.rows.items()

    @property
    def _all_keys(self) -> dict[K, None]:
        if self._keys is None:
            self._keys = dict.fromkeys(self._read_keys())
        return self._keys

    def put(self, rows: Mapping[K, V]) -> Mapping[K, V]:
        """See `Layered.put`."""
        return Overlay(self, dict(rows), frozenset())

    def without(self, keys: frozenset[K]) -> Mapping[K, V]:
        """See `Layered.without`."""
        return Overlay(self, {}, keys)


class Overlay(Layered[K, V]):
    """Changes over a table of parts.

    Args:
        base: the table as stored.
        written: rows added or replaced.
        gone: keys that are no more; none of `written`.
    """

    __slots__ = ("base", "gone", "written")

    def __init__(self, base: Parts[K, V], written: Mapping[K, V], gone: frozenset[K]) -> None:
        self.base = base
        self.written = written
        self.gone = gone

    def __getitem__(self, key: K) -> V:
        if key in self.written:
            return self.written[key]
        if key in self.gone:
            raise KeyError(key)
        return self.base[key]

    def __contains__(self, key: object) -> bool:
        return key in self.written or (key not in self.gone and key in self.base)

    def __iter__(self) -> Iterator[K]:
        yield from (k for k in self.base if k not in self.gone and k not in self.written)
        yield from self.written

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @property
    def rows(self) -> dict[K, V]:
        """Every row, those of the base read at once."""
        return {k: v for k, v in self.base.items() if k not in self.gone} | dict(self.written)

    def values(self) -> ValuesView[V]:
        """See `Mapping.values`."""
        return self.rows.values()

    def items(self) -> ItemsView[K, V]:
        """See `Mapping.items`."""
        return self.rows.items()

    def put(self, rows: Mapping[K, V]) -> Mapping[K, V]:
        """See `Layered.put`."""
        return Overlay(self.base, {**self.written, **rows}, self.gone - rows.keys())

    def without(self, keys: frozenset[K]) -> Mapping[K, V]:
        """See `Layered.without`."""
        return Overlay(self.base, {k: v for k, v in self.written.items() if k not in keys}, self.gone | keys)


@dataclass(frozen=True, slots=True)
class Changes(Generic[K, V]):
    """What a decision changed in one table."""

    written: Mapping[K, V] = field(default_factory=dict)
    gone: frozenset[K] = frozenset()


def changes(before: Mapping[K, V], after: Mapping[K, V]) -> Changes[K, V]:
    """Return what `after`, a decision's mapping, has changed in `before`, the store's.

    A mapping, or a row, that is the same object is unchanged, whatever it costs to compare; an equal row is, too.
    """
    if after is before:
        return Changes()
    if isinstance(after, Overlay) and after.base is before:
        return Changes(
            written=after.written, gone=frozenset(k for k in after.gone if k in before) - after.written.keys()
        )
    known = before.rows if isinstance(before, Whole) else before
    written = {k: v for k, v in after.items() if k not in known or _differs(known[k], v)}
    return Changes(written=written, gone=frozenset(k for k in known if k not in after))


def _differs(before: V, after: V) -> bool:
    return before is not after and before != after
