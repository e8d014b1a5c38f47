from __future__ import annotations

import pytest

from airflow_kcr.errors import SpecError
from airflow_kcr.spec import MOST_VALUES, read_yaml
from airflow_kcr.spec.fields import path_text


def refused(text: str) -> tuple[tuple[str, str], ...]:
    try:
        return tuple((path_text(f.path), f.text) for f in read_yaml(text).refused)
    except SpecError as error:
        return error.findings


def refused_at(text: str) -> str:
    ((place, _),) = refused(text)
    return place


class TestValues:
    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("5", 5),
            ("-5", -5),
            ("007", 7),
            ("1.5", 1.5),
            ("1.", 1.0),
            (".5e-3", 0.0005),
            ("true", True),
            ("False", False),
            ("null", None),
            ("~", None),
            ("''", ""),
            ("[]", []),
            ("{}", {}),
        ],
    )
    def test_of_the_core_schema_are_read(self, text: str, value: object) -> None:
        read = read_yaml(f"a: {text}").value
        assert read == {"a": value}
        assert isinstance(read, dict)
        assert type(read["a"]) is type(value)

    def test_with_quotes_stay_text(self) -> None:
        assert read_yaml("a: '5'\nb: \"true\"\n").value == {"a": "5", "b": "true"}

    def test_of_an_empty_text_are_none(self) -> None:
        assert read_yaml("").value is None
        assert read_yaml("# nothing\n").value is None

    def test_keys_are_text_whatever_they_look_like(self) -> None:
        assert read_yaml("5: a\ntrue: b\n").value == {"5": "a", "true": "b"}

    def test_aliases_are_expanded(self) -> None:
        assert read_yaml("a: &x [1]\nb: *x\n").value == {"a": [1], "b": [1]}


class TestLines:
    def test_are_those_of_the_keys_and_of_the_elements(self) -> None:
        lines = read_yaml("a:\n  b:\n    - 1\n    -\n      c: 2\n").lines
        assert lines[("a",)] == 1
        assert lines[("a", "b")] == 2
        assert lines[("a", "b", 0)] == 3
        assert lines[("a", "b", 1, "c")] == 5


class TestSyntaxErrors:
    @pytest.mark.parametrize(
        ("text", "place"),
        [
            ("a: [1\nb: 2", "line 2, column 2"),
            ("a: 1\n\tb: 2", "line 2, column 1"),
            ("a: 'x", "line 1, column 6"),
            ("a: b: c", "line 1, column 5"),
            ("a: 1\n---\nb: 2", "line 2, column 1"),
            ("a: *x", "line 1, column 4"),
        ],
    )
    def test_say_line_and_column(self, text: str, place: str) -> None:
        assert refused_at(text) == place

    def test_say_what_is_the_matter_with_a_tab(self) -> None:
        assert refused("a: 1\n\tb: 2")[0][1] == "is not YAML: a tab where only spaces may be"

    def test_of_a_character_that_yaml_never_has_are_findings_too(self) -> None:
        assert refused_at("a: \0") == "spec"

    @pytest.mark.parametrize(
        "text",
        ["a: *hunter2", "a: !hunter2 x", "a: !<hunter2> x", "a: !hunter2!x y", "%hunter2\n---\na: [", "a: &hunter2"],
    )
    def test_never_quote_what_may_be_a_secret(self, text: str) -> None:
        try:
            read_yaml(text)
        except SpecError as error:
            assert "hunter2" not in str(error)  # noqa: PT017 (not every one of them is refused)

    def test_endless_nesting_is_one(self) -> None:
        assert refused(10_000 * "[") == (("spec", "is nested too deeply"),)


class TestRefused:
    def test_a_key_that_is_there_twice_with_both_lines(self) -> None:
        assert refused("a:\n  b: 1\n  c: 2\n  b: 3\n") == (
            ("a.b", "line 4: is there twice, first in line 2; only one of the two can count"),
        )

    def test_tags(self) -> None:
        assert refused_at("a: {b: !x 1}") == "a.b"
        assert refused_at("a: !!python/name:os.system x") == "a"
        assert refused_at("a: !!int x") == "a"
        assert refused_at("a: !!set {b}") == "a"

    def test_a_key_that_is_no_text(self) -> None:
        assert refused_at("a: {[1]: 2}") == "a"

    def test_an_alias_of_what_it_is_part_of(self) -> None:
        assert refused_at("a: &x {b: [*x]}") == "a.b[0]"

    def test_aliases_that_expand_without_an_end_in_sight(self) -> None:
        nested = "\n".join(f"a{n}: &a{n} [{', '.join(10 * [f'*a{n - 1}'])}]" for n in range(1, 12))
        assert refused(f"a0: &a0 x\n{nested}\n")[-1] == (
            "spec",
            f"line 1: holds more than {MOST_VALUES} values, aliases expanded",
        )
