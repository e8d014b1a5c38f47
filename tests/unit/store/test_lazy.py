"""Tables that are read when they are asked for, and what a decision changed in them."""

from __future__ import annotations

from typing import TypeAlias

from hypothesis import given
from hypothesis import strategies as st

from airflow_kcr.protocol.region.state import put, without
from airflow_kcr.store.postgres.lazy import Changes, Overlay, Parts, Whole, changes

Rows: TypeAlias = dict[tuple[int, int], str]


class Source:
    """Rows by (part, number), which counts what is read."""

    def __init__(self, rows: dict[tuple[int, int], str]) -> None:
        self.rows = rows
        self.read: list[object] = []

    def whole(self) -> Whole[tuple[int, int], str]:
        def load() -> dict[tuple[int, int], str]:
            self.read.append("all")
            return dict(self.rows)

        return Whole(load)

    def parts(self) -> Parts[tuple[int, int], str]:
        def load(key: tuple[int, int]) -> dict[tuple[int, int], str]:
            self.read.append(key[0])
            return {k: v for k, v in self.rows.items() if k[0] == key[0]}

        def keys() -> list[tuple[int, int]]:
            self.read.append("keys")
            return list(self.rows)

        def load_all() -> dict[tuple[int, int], str]:
            self.read.append("all")
            return dict(self.rows)

        return Parts(keys=keys, part=lambda key: key[0], load=load, load_all=load_all)


ROWS = {(1, 1): "a", (1, 2): "b", (2, 1): "c"}


def test_a_whole_table_is_read_once_and_only_if_it_is_asked_for() -> None:
    source = Source(ROWS)
    table = source.whole()
    assert source.read == []
    assert (table[1, 1], table.get((9, 9)), table.get((9, 9), "none"), (2, 1) in table) == ("a", None, "none", True)
    assert (dict(table), len(table), list(table.values())) == (ROWS, 3, ["a", "b", "c"])
    assert source.read == ["all"]


def test_of_a_table_of_parts_only_the_part_is_read() -> None:
    source = Source(ROWS)
    table = source.parts()
    assert (table[1, 1], table[1, 2], table.get((1, 3))) == ("a", "b", None)
    assert source.read == [1]
    assert ((2, 1) in table, (3, 1) in table, len(table)) == (True, False, 3)
    assert source.read == [1, "keys"]


def test_who_walks_through_a_table_of_parts_reads_it_at_once() -> None:
    source = Source(ROWS)
    table = source.parts()
    assert table[1, 1] == "a"
    assert len(table) == len(ROWS)
    source.rows = {(1, 1): "changed since", (1, 2): "b", (9, 9): "new since"}
    assert dict(table.items()) == {(1, 1): "a", (1, 2): "b"}
    assert (list(table.values()), table.get((2, 1))) == (["a", "b"], None)
    assert dict(put(table, {(3, 1): "d"}).items()) == {(1, 1): "a", (1, 2): "b", (3, 1): "d"}
    assert source.read == [1, "keys", "all"]


def test_what_a_part_does_not_have_is_not_asked_for_again() -> None:
    source = Source(ROWS)
    table = source.parts()
    assert table.get((2, 9)) is None
    assert ((2, 8) in table, (2, 1) in table) == (False, True)
    assert source.read == [2]


def test_to_add_a_row_reads_nothing() -> None:
    source = Source(ROWS)
    table = source.parts()
    after = without(put(put(table, {(3, 1): "d"}), {(1, 1): "A"}), frozenset({(1, 2)}))
    assert source.read == []
    assert after[3, 1] == "d"
    assert changes(table, after).written == {(3, 1): "d", (1, 1): "A"}
    assert source.read == ["keys"]
    assert dict(after) == {(2, 1): "c", (3, 1): "d", (1, 1): "A"}


def test_what_was_not_touched_is_not_read_to_find_that_out() -> None:
    source = Source(ROWS)
    for table in (source.whole(), source.parts()):
        assert changes(table, put(table, {})) == Changes()
    assert source.read == []


def test_equal_rows_are_unchanged() -> None:
    table = Source(ROWS).whole()
    assert changes(table, put(table, {(1, 1): "a", (1, 2): "B"})) == Changes(written={(1, 2): "B"})


keys = st.tuples(st.integers(0, 3), st.integers(0, 3))
rows = st.dictionaries(keys, st.sampled_from("abc"), max_size=6)
steps = st.lists(st.tuples(st.booleans(), rows), max_size=5)


@given(rows, steps)
def test_an_overlay_is_the_dict_that_it_stands_for(stored: Rows, done: list[tuple[bool, Rows]]) -> None:
    plain, table = dict(stored), Source(stored).parts()
    lazy = table.put({})
    for is_put, given_rows in done:
        if is_put:
            plain, lazy = {**plain, **given_rows}, put(lazy, given_rows)
        else:
            gone = frozenset(given_rows)
            plain, lazy = dict(without(plain, gone)), without(lazy, gone)
    assert isinstance(lazy, Overlay)
    assert dict(lazy) == plain
    assert len(lazy) == len(plain)
    assert all((k in lazy) == (k in plain) and lazy.get(k) == plain.get(k) for k in {**stored, **plain})
    changed = changes(table, lazy)
    assert {**{k: v for k, v in stored.items() if k not in changed.gone}, **changed.written} == plain
    assert changed.gone <= stored.keys()
