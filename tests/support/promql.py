"""The alert rules and the board, and their expressions over one scrape, for where there is no Prometheus.

Of PromQL it knows what most rules use: selectors, comparisons with a number or a vector, and `and`.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import promql_parser
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.support.docs_pages import TOP

FOLDER: Final = TOP / "docs/how-to/watch"

Series = dict[frozenset[tuple[str, str]], float]
"""Values by their labels, the name left out."""

_COMPARISONS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
}


def alerts() -> dict[str, str]:
    """The expression of each alert, by its name."""
    (group,) = yaml.safe_load((FOLDER / "alerts.yaml").read_text("utf-8"))["groups"]
    return {rule["alert"]: rule["expr"] for rule in group["rules"]}


def board() -> dict[str, Any]:
    """The board for Grafana."""
    found: dict[str, Any] = json.loads((FOLDER / "board.json").read_text("utf-8"))
    return found


def selectors(expression: str) -> list[Any]:
    """Every selector of an expression; raises where Prometheus would refuse it."""
    found: list[Any] = []

    def visit(node: Any) -> None:  # noqa: ANN401 (the parser has no types)
        if isinstance(node, promql_parser.VectorSelector):
            found.append(node)

    promql_parser.walk(promql_parser.parse(expression), visit)
    return found


def evaluated(expression: str, scraped: str) -> Series:
    """What an expression is over one scrape, as Prometheus' text has it."""
    samples = [s for family in text_string_to_metric_families(scraped) for s in family.samples]
    found = _value(promql_parser.parse(expression), samples)
    assert isinstance(found, dict)
    return found


def _value(node: Any, samples: list[Any]) -> Series | float:  # noqa: ANN401
    match node:
        case promql_parser.NumberLiteral():
            return float(node.val)
        case promql_parser.VectorSelector():
            return dict(_selected(node, samples))
        case promql_parser.BinaryExpr():
            left, right = _value(node.lhs, samples), _value(node.rhs, samples)
            assert isinstance(left, dict)
            modifier: Any = node.modifier
            names = None if modifier is None else set(modifier.matching.labels)
            others = {_key(labels, names): value for labels, value in right.items()} if isinstance(right, dict) else {}
            if str(node.op) == "and":
                return {labels: value for labels, value in left.items() if _key(labels, names) in others}
            holds = _COMPARISONS[str(node.op)]
            number = None if isinstance(right, dict) else right
            return {
                labels: value
                for labels, value in left.items()
                if (other := others.get(_key(labels, names)) if number is None else number) is not None
                and holds(value, other)
            }
    raise TypeError(node)


def _selected(node: Any, samples: list[Any]) -> Iterator[tuple[frozenset[tuple[str, str]], float]]:  # noqa: ANN401
    for sample in samples:
        if sample.name == node.name and all(_fits(m, sample.labels) for m in node.matchers.matchers):
            yield frozenset(sample.labels.items()), sample.value


def _fits(matcher: Any, labels: Mapping[str, str]) -> bool:  # noqa: ANN401
    value = labels.get(matcher.name, "")
    if str(matcher.op).endswith("Re"):
        return re.fullmatch(matcher.value, value) is not None
    assert str(matcher.op).endswith(".Equal"), matcher.op
    return bool(value == matcher.value)


def _key(labels: frozenset[tuple[str, str]], names: set[str] | None) -> frozenset[tuple[str, str]]:
    return labels if names is None else frozenset(pair for pair in labels if pair[0] in names)
