"""The region spec: what a region is, as its owner writes it (docs/reference/spec.md).

A YAML file, or the dataclasses of the same fields, becomes a frozen `RegionSpec`; its `rules()` are what the protocol
decides by, its `to_json()` is what the store holds. Everything that is wrong is said at once, each with its path in the
file.

Rules of the YAML:

- The core schema of YAML 1.2: `no` is a word, `10:30` is text and `2026-01-01` is no date; of the plain words only
  `true`, `false` and `null` (`~`) mean something else than themselves.
- A key that is there twice is refused: one of the two would silently not count.
- Tags are refused. Anchors and aliases work, as long as what they expand to has an end.
- No message quotes the file: the line may hold a secret.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path as FilePath
from typing import Final

import yaml

from airflow_kcr.errors import SpecError
from airflow_kcr.settings import KafkaSettings, refusals, resolve_environment
from airflow_kcr.spec.codec import from_plain
from airflow_kcr.spec.fields import FOREVER, Finding, Path, TakesEffect, path_text
from airflow_kcr.spec.groups import GroupSpec
from airflow_kcr.spec.model import (
    BatchSpec,
    CheckpointSpec,
    Difference,
    HistorySpec,
    RegionSpec,
    Split,
    differences,
    is_other_address,
    split,
)
from airflow_kcr.spec.sinks import SinkKind, SinkSpec

__all__ = [
    "FOREVER",
    "BatchSpec",
    "CheckpointSpec",
    "Difference",
    "GroupSpec",
    "HistorySpec",
    "KafkaSettings",
    "RegionSpec",
    "SinkKind",
    "SinkSpec",
    "Split",
    "TakesEffect",
    "differences",
    "is_other_address",
    "load",
    "parse",
    "refusals",
    "resolve_environment",
    "split",
    "stored_spec",
]


@lru_cache(maxsize=64)
def stored_spec(text: str) -> RegionSpec:
    """Return the spec that the store holds as a text; the text of a revision never changes, so it is read once."""
    return RegionSpec.from_json(text)


# YAML: plain values with the line of each, and nothing that surprises

Plain = str | int | float | bool | None | list["Plain"] | dict[str, "Plain"]
"""What JSON can say, and nothing else."""

MOST_VALUES: Final = 100_000
"""How many values a spec may hold, aliases expanded: a handful of lines could otherwise fill the memory."""

_TAG: Final = "tag:yaml.org,2002:"


class _CoreLoader(yaml.SafeLoader):
    """Reads nodes by the core schema; PyYAML's own resolvers are those of YAML 1.1."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 (PyYAML's own shape)


def _resolver(tag: str, pattern: str, first: str) -> None:
    _CoreLoader.add_implicit_resolver(f"{_TAG}{tag}", re.compile(rf"(?:{pattern})\Z"), [*first] or [""])


_resolver("bool", "true|True|TRUE|false|False|FALSE", "tTfF")
_resolver("null", "~|null|Null|NULL", "~nN")
_resolver("null", "", "")
# Far more digits than any field takes: that a number is too large is for its field to say.
_resolver("int", "[-+]?[0-9]{1,4000}", "-+0123456789")
_resolver("float", r"[-+]?(?:[0-9]{1,18}\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]{1,3})?", "-+.0123456789")


def parse(text: str) -> RegionSpec:
    """Return the spec that a YAML text says.

    Raises:
        SpecError: with everything that is wrong, each with its path and line; for what is not YAML at all, with line
            and column.
    """
    read = read_yaml(text)
    lines = {path_text(path): line for path, line in read.lines.items()}
    return from_plain(read.value, RegionSpec, lines, [(path_text(f.path), f.text) for f in read.refused])


def load(path: str | FilePath) -> RegionSpec:
    """Return the spec in a YAML file, in UTF-8.

    Raises:
        SpecError: as for `parse`, or the file can't be read.
    """
    try:
        text = FilePath(path).read_text(encoding="utf-8")
    except OSError as error:
        raise SpecError(((str(path), f"can't be read: {error.strerror}"),)) from error
    except UnicodeDecodeError as error:
        raise SpecError(((str(path), f"is not UTF-8: byte {error.start}"),)) from None
    return parse(text)


def read_yaml(text: str) -> YamlDocument:
    """Return what `text` says.

    Args:
        text: one YAML document.

    Raises:
        SpecError: it is not YAML (with line and column), or not one document.
    """
    try:
        loader = _CoreLoader(text)
        try:
            node = loader.get_single_node()
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        raise SpecError((_syntax(error),)) from None
    except RecursionError:
        raise SpecError((("spec", "is nested too deeply"),)) from None
    return YamlDocument(node)


class YamlDocument:
    """What a text said: plain values of YAML's nodes.

    Args:
        node: of the whole; None: the text has nothing.
    """

    def __init__(self, node: yaml.Node | None) -> None:
        self.lines: dict[Path, int] = {}
        """The line of each value, from 1."""

        self.refused: list[Finding] = []
        """What the module's rules refuse, each with its line in the text; the value has nothing there, or the first of
        two equal keys."""

        self._open: set[int] = set()
        self._left = MOST_VALUES
        self.value = None if node is None else self._build(node, ())

    def _build(self, node: yaml.Node, path: Path) -> Plain:
        """Return the value of `node`, which is at `path`."""
        self.lines.setdefault(path, node.start_mark.line + 1)
        self._left -= 1
        if self._left < 0:
            if self._left == -1:
                self.refused.append(Finding((), f"line 1: holds more than {MOST_VALUES} values, aliases expanded"))
            return None
        if id(node) in self._open:
            return self._refused(path, "is an alias of what it is part of")
        self._open.add(id(node))
        try:
            return self._value(node, path)
        finally:
            self._open.discard(id(node))

    def _value(self, node: yaml.Node, path: Path) -> Plain:
        match node:
            case yaml.MappingNode(tag="tag:yaml.org,2002:map"):
                return self._mapping(node, path)
            case yaml.SequenceNode(tag="tag:yaml.org,2002:seq"):
                return [self._build(item, (*path, index)) for index, item in enumerate(node.value)]
            case yaml.ScalarNode(tag=tag, value=str(text)) if tag.startswith(_TAG):
                return self._scalar(tag.removeprefix(_TAG), text, path)
            case _:
                return self._refused(path, "has a YAML tag (!); quote a text that begins with !")

    def _mapping(self, node: yaml.MappingNode, path: Path) -> Plain:
        result: dict[str, Plain] = {}
        for key, item in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self._refused(path, "has a key that is no text")
                continue
            here = (*path, key.value)
            if key.value in result:
                line = key.start_mark.line + 1
                text = f"line {line}: is there twice, first in line {self.lines[here]}; only one of the two can count"
                self.refused.append(Finding(here, text))
                continue
            self.lines[here] = key.start_mark.line + 1
            result[key.value] = self._build(item, here)
        return result

    def _scalar(self, tag: str, text: str, path: Path) -> Plain:
        try:
            match tag:
                case "str":
                    return text
                case "null":
                    return None
                case "bool" if text.lower() in {"true", "false"}:
                    return text.lower() == "true"
                case "int":
                    return int(text)
                case "float":
                    return float(text)
        except ValueError:  # an explicit tag, as in `!!int x`
            pass
        return self._refused(path, "has a YAML tag (!) that doesn't fit; leave the tag out")

    def _refused(self, path: Path, text: str) -> Plain:
        self.refused.append(Finding(path, f"line {self.lines.get(path, 1)}: {text}"))
        return None


def _syntax(error: yaml.YAMLError) -> tuple[str, str]:
    """Return the place of a syntax error, and PyYAML's sentence about it without what that quotes from the file."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "can't be read"
    if "'\\t'" in problem:
        problem = "a tab where only spaces may be"
    elif "undefined alias" in problem:
        problem = "an alias without its anchor; quote a text that begins with *"
    problem = re.sub(r"'[^'\s]*\w{2}[^'\s]*'", "'…'", problem)
    place = "spec" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}"
    return place, f"is not YAML: {problem}"
