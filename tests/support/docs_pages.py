"""The parts of `docs/` and `tests/annex/` that are made from the code, and the command that renews them.

    python -m tests.support.docs_pages

A page is written by hand but for its generated blocks, each between two comments that name it. A block says what the
code says: the values of an enumeration, the fields of an event, the default of a time. `tests/unit/docs` fails when a
page is not what this module makes of it, or a table between two other comments is not what regions do.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, get_args, get_origin

from airflow_kcr import errors, settings, traces
from airflow_kcr.metrics.declared import MEMBER_METRICS, METRICS, TASK_METRICS, Metric
from airflow_kcr.protocol import offsets, targets, timeouts, values
from airflow_kcr.protocol.invariants.proof import CHECKS
from airflow_kcr.protocol.member import messages as member_effects
from airflow_kcr.protocol.member import messages as member_events
from airflow_kcr.protocol.member import state as member_state
from airflow_kcr.protocol.member.step import TABLE
from airflow_kcr.protocol.region import commands, events, incidents, lag, rows, waits
from airflow_kcr.protocol.values import DesiredState, format_duration
from airflow_kcr.spark import reads
from airflow_kcr.spec import RegionSpec, TakesEffect
from airflow_kcr.spec.fields import AsText, declared, parts_of
from airflow_kcr.spec.sinks import Sinks
from airflow_kcr.store.postgres import revision as schema
from tests.support import airflow_pages
from tests.support.simulation.faults import DRAWN_APART, FAULTS

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

TOP = Path(__file__).parents[2]
DOCS = TOP / "docs"
ANNEX = TOP / "tests" / "annex"
COMMAND = "python -m tests.support.docs_pages"

BLOCK = re.compile(r"(<!-- generated: (?P<name>[a-z-]+) -->\n).*?(<!-- end of generated -->)", re.DOTALL)
CHECKED = re.compile(r"<!-- checked: (?P<name>[a-z-]+) -->\n(?P<table>.*?)<!-- end of checked -->", re.DOTALL)


def checked_tables() -> dict[str, list[list[str]]]:
    """Return the tables that are written by hand and compared with the code: the cells of each line, by name."""
    found: dict[str, list[list[str]]] = {}
    for path in pages():
        for match in CHECKED.finditer(path.read_text(encoding="utf-8")):
            lines = match["table"].strip().splitlines()[2:]
            found[match["name"]] = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return found


# -- what sources say ----------------------------------------------------------------------------------------------


def attribute_notes(module: ModuleType) -> dict[tuple[str, str], str]:
    """Return the string beneath each attribute of a module's classes, by (class, attribute)."""
    found: dict[tuple[str, str], str] = {}
    for node in ast.parse(inspect.getsource(module)).body:
        if not isinstance(node, ast.ClassDef):
            continue
        for statement, follower in zip(node.body, [*node.body[1:], None], strict=True):
            target: ast.expr | None = None
            if isinstance(statement, ast.AnnAssign):
                target = statement.target
            elif isinstance(statement, ast.Assign):
                target = statement.targets[0]
            if isinstance(target, ast.Name) and isinstance(follower, ast.Expr):
                value = follower.value
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    found[node.name, target.id] = _joined(value.value)
    return found


def docstring(thing: object) -> str:
    """Return the docstring of a class or function, without its sections of arguments and errors."""
    text = inspect.getdoc(thing) or ""
    return text.partition("\n\nArgs:")[0].partition("\n\nRaises:")[0]


def sentence(thing: object) -> str:
    """Return the first paragraph of a docstring, in one line."""
    return _joined(docstring(thing).partition("\n\n")[0])


def _joined(text: str) -> str:
    return " ".join(text.split())


# -- Markdown ------------------------------------------------------------------------------------------------------


def table(head: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    """Return a table; a pipe in a cell is escaped."""
    cells = [list(head), *([c.replace("|", "\\|") for c in line] for line in lines)]
    shown = ["| " + " | ".join(line) + " |" for line in cells]
    return "\n".join([shown[0], "|" + "---|" * len(cells[0]), *shown[1:]])


def listed(lines: Iterable[Iterable[str]]) -> str:
    """Return names, each with what it means, as a list."""
    return "\n".join(f"- {name}: {meaning}" for name, meaning in lines)


def grouped(pairs: Iterable[tuple[str, str]]) -> str:
    """Return names as code, with what they mean, those of one meaning together."""
    found: dict[str, list[str]] = {}
    for name, meaning in pairs:
        found.setdefault(meaning, []).append(code(name))
    return listed((", ".join(names), meaning) for meaning, names in found.items())


def code(text: object) -> str:
    """Return a text as code."""
    return f"`{text}`"


def _span(value: timedelta) -> str:
    value = round(value / timedelta(milliseconds=1)) * timedelta(milliseconds=1)
    return format_duration(value).removeprefix("PT").lower() if value < timedelta(days=1) else format_duration(value)


def note_of(value: StrEnum, notes: Mapping[tuple[str, str], str]) -> str:
    """Return what a value of an enumeration means, as the code says."""
    return notes[type(value).__name__, value.name]


def values_of(module: ModuleType, kind: type[StrEnum]) -> str:
    """Return the values of an enumeration with their notes."""
    notes = attribute_notes(module)
    return listed([code(v.value), note_of(v, notes)] for v in kind)


def classes(module: ModuleType, kinds: Iterable[type]) -> str:
    """Return a list of classes: what each means, and its fields with their notes."""
    notes = attribute_notes(module)
    lines = []
    for kind in kinds:
        if issubclass(kind, StrEnum):
            lines += [[code(f"{kind.__name__}.{one.name}"), note_of(one, notes)] for one in kind]
            continue
        named = [f.name for f in fields(kind)] if is_dataclass(kind) else []
        shown = ", ".join(code(name) + _aside(notes.get((kind.__name__, name), "")) for name in named)
        lines.append([code(kind.__name__), f"{sentence(kind)} {shown}".rstrip()])
    return listed(lines)


def _aside(note: str) -> str:
    if not note:
        return ""
    first = note if note.startswith(_NAMES) else note[0].lower() + note[1:]
    return f" ({first.removesuffix('.')})"


_NAMES = ("Kafka", "Spark", "Airflow", "Postgres")


def lineage_facets() -> str:
    """Return the fields of the facets of lineage, from their schema, but for those of every facet of OpenLineage."""
    schema = json.loads((DOCS / "reference" / "schemas" / "lineage.json").read_text(encoding="utf-8"))
    parts = []
    for name, facet in schema["$defs"].items():
        told = {field: of["description"] for field, of in facet["properties"].items() if not field.startswith("_")}
        parts += [f"`{name}`:", listed([code(field), meaning] for field, meaning in told.items())]
    return "\n\n".join(parts)


# -- states --------------------------------------------------------------------------------------------------------


def member_table() -> str:
    """Return the events of a member, from its table."""
    notes, lines = attribute_notes(member_events), []
    for kind in TABLE:
        if isinstance(kind, member_events.Notice):
            lines.append([code(f"Notice.{kind.name}"), note_of(kind, notes)])
        else:
            names = kind if isinstance(kind, tuple) else (kind,)
            lines.append([" ".join(code(name.__name__) for name in names), sentence(names[-1])])
    return table(["Event", "Meaning"], lines)


def causes() -> str:
    """Return the causes of resets, and which of them count as failures."""
    notes = attribute_notes(rows)
    counts = dict.fromkeys(rows.FAILURE_CAUSES, " A failure.")
    return listed([code(c.value), note_of(c, notes) + counts.get(c, "")] for c in rows.ResetCause)


# -- errors --------------------------------------------------------------------------------------------------------


def exit_statuses() -> dict[type[errors.KcrError], int]:
    """Return the exit status that each error has, by the branch of the tree it is on."""
    said = dict(re.findall(r"(\w+) +\S.*\(exit status (\d)\)", errors.__doc__ or ""))
    return {
        kind: next(
            (int(said[restore_point.__name__]) for restore_point in kind.__mro__ if restore_point.__name__ in said), 1
        )
        for kind in error_classes()
    }


def error_classes() -> list[type[errors.KcrError]]:
    """Return every error, in the order of the module."""
    found = [c for c in vars(errors).values() if inspect.isclass(c) and issubclass(c, errors.KcrError)]
    return [c for c in found if c.__module__ == errors.__name__]


_MESSAGE = re.compile(r"; the message (?:says|names)[^.]*\.")
"""The page says once of all messages what they say."""


def error_table() -> str:
    """Return every error below its branch of the tree: its exit status, and its parent if that is another one."""
    statuses = exit_statuses()
    parts = []
    for branch in error_classes():
        if branch.__base__ is not errors.KcrError:
            continue
        status = "" if statuses[branch] == 1 else f" Exit status {statuses[branch]}."
        parts.append(f"## {branch.__name__}\n\n{_MESSAGE.sub('.', sentence(branch))}{status}")
        lines = []
        for kind in error_classes():
            if issubclass(kind, branch) and kind is not branch:
                parent = "" if kind.__base__ is branch else f" Kind of {code(kind.__mro__[1].__name__)}."
                status = "" if statuses[kind] == statuses[branch] else f" Exit status {statuses[kind]}."
                lines.append([code(kind.__name__), _MESSAGE.sub(".", sentence(kind)) + parent + status])
        parts.append(listed(lines))
    return "\n\n".join(part for part in parts if part)


# -- times ---------------------------------------------------------------------------------------------------------


def timeout_table() -> str:
    """Return every time with its name in the spec file and its default."""
    notes = attribute_notes(timeouts)
    lines = []
    for field in fields(timeouts.Timeouts):
        value = field.default
        shown = _span(value) if isinstance(value, timedelta) else "derived" if value is None else str(value).lower()
        name = code(timeouts.setting_name(field.name))
        lines.append([f"{name} ({shown})", notes.get(("Timeouts", field.name), "")])
    return listed(lines)


def derived_times() -> str:
    """Return the times that follow from others, with their values at the defaults."""
    times = timeouts.Timeouts()
    dynamic, static = (_span(times.session_timeout(static=one)) for one in (False, True))
    lines = [
        [f"session timeout, dynamic member ({dynamic})", "Its partitions should move soon."],
        [f"session timeout, static member (max(120 s, 1.2 x `relaunch`); {static})", "Its slot waits for a relaunch."],
    ]
    for name, member in inspect.getmembers(timeouts.Timeouts, lambda m: isinstance(m, property)):
        lines.append([f"{code(name)} ({_formula(member.fget)}; {_span(getattr(times, name))})", sentence(member.fget)])
    return listed(lines)


def _formula(derived: object) -> str:
    """Return how a time follows from others, as the last paragraph of its docstring has it."""
    return _joined(docstring(derived).rpartition("\n\n")[2]).removesuffix(".")


def timeout_rules() -> str:
    """Return the rules that the module of the checks states."""
    return (timeouts.__doc__ or "").partition("settings that clash:\n\n")[2].strip()


# -- the spec ------------------------------------------------------------------------------------------------------

_SHOWN_TYPES: Mapping[object, str] = {str: "text", int: "number", bool: "true or false"}
_ABSENT = (None, ())


class SpecField(NamedTuple):
    """A field of the spec as the reference shows it."""

    kind: str
    default: str
    meaning: str
    takes_effect: TakesEffect


def spec_fields(
    kind: type[DataclassInstance] = RegionSpec, prefix: str = "", around: TakesEffect = TakesEffect.AT_ONCE
) -> dict[str, SpecField]:
    """Return every field of the file but the times, by its path; sections come after fields that have none.

    Args:
        kind: the class whose fields are shown.
        prefix: of their paths.
        around: when a change of the section counts that they are in.
    """
    notes = attribute_notes(sys.modules[kind.__module__])
    found: dict[str, SpecField] = {}
    for name, field in declared(kind).items():
        if field.section is None or name == "sinks":
            meaning = notes[kind.__name__, field.attribute]
            effect = field.takes_effect or around
            found[prefix + name] = SpecField(_type(field.hint), _default(field.default), meaning, effect)
    for name, field in declared(kind).items():
        if field.section is not None and name != "timeouts":
            inner = {"groups": "groups[].", "sinks": "sinks.*."}.get(name, f"{name}.")
            found |= spec_fields(field.section, prefix + inner, field.takes_effect or around)
    return found


def _type(hint: Any) -> str:  # noqa: ANN401 (a hint is anything)
    parts = list(parts_of(hint))
    written = [each for each in parts if isinstance(each, AsText)]
    if written:
        return written[0].shown
    if Sinks in parts or any(get_origin(each) is Mapping for each in parts):
        return "mapping"
    if any(get_origin(each) is tuple for each in parts):
        return "list of texts"
    return next(_SHOWN_TYPES[each] for each in parts if each in _SHOWN_TYPES)


def _default(value: Any) -> str:  # noqa: ANN401 (a default of any type)
    if value is MISSING:
        return "required"
    if value in _ABSENT:
        return ""
    if isinstance(value, timedelta):
        return code(_span(value))
    if isinstance(value, bool):
        return code(str(value).lower())
    if isinstance(value, int | str):
        return code(value)
    return code(value.text)


def spec_table() -> str:
    """Return every field of the spec but the times; when its change counts, where that is another time than usual."""
    lines = []
    for path, field in spec_fields().items():
        usual = TakesEffect.NEXT_CHECKPOINT if path.startswith("groups") else TakesEffect.AT_ONCE
        change = "" if field.takes_effect is usual else f" Change: {field.takes_effect.replace('_', ' ')}."
        between = "; default " if field.kind.startswith("`") and field.default != "required" else ", "
        value = between.join(part for part in (field.kind, field.default) if part)
        lines.append([f"{code(path)} ({value})", field.meaning + change])
    return listed(lines)


def refused_settings() -> str:
    """Return the client settings that are refused, by what to do instead; their messages say why."""
    return grouped(
        (f"{name}={accepted}" if accepted else name, why.rpartition("; ")[2])
        for name, (accepted, why) in settings.REFUSED.items()
    )


# -- invariants, targets, the store, scenarios ---------------------------------------------------------------------


def invariants() -> str:
    """Return what each check of `verify` proves, and what it can't see."""
    parts: list[str] = []
    for check in CHECKS:
        head, *rest = docstring(check).split("\n\n")
        number, _, claim = _joined(head).partition(" (V) ")
        parts.append(f"### {number}\n\n**{claim[:1].upper()}{claim[1:]}**")
        parts.extend(_joined(paragraph) for paragraph in rest)
    return "\n\n".join(parts)


def invariant_claims() -> str:
    """Return what each check of `verify` claims, a line each."""
    claims = (_joined(docstring(check).partition("\n\n")[0]).partition(" (V) ") for check in CHECKS)
    return listed([number, claim[:1].upper() + claim[1:]] for number, _, claim in claims)


def target_table() -> str:
    """Return the targets with where each leads."""
    return listed([code(f"--{kind.option} {kind.metavar}".rstrip()), sentence(kind)] for kind in targets.TARGETS)


def revision() -> str:
    """Return the newest revision of the schema."""
    return f"The newest revision is `{schema.HEAD}`."


_TEST = re.compile(r"^def test_c(\d\d)_\w+", re.MULTILINE)


def scenario_tests() -> dict[int, list[str]]:
    """Return the tests of each numbered scenario, as `file::test`, by reading `tests/`."""
    found: dict[int, list[str]] = {}
    for path in sorted((TOP / "tests").rglob("test_*.py")):
        for match in _TEST.finditer(path.read_text(encoding="utf-8")):
            name = match[0].removeprefix("def ")
            found.setdefault(int(match[1]), []).append(f"{path.relative_to(TOP)}::{name}")
    return found


def scenarios() -> str:
    """Return the tests that show each scenario."""
    lines = []
    for number, names in sorted(scenario_tests().items()):
        listed = "<br>".join(code(name.rpartition("::")[2]) for name in names)
        files = ", ".join(sorted({code(name.partition("::")[0].removeprefix("tests/")) for name in names}))
        lines.append([f"C{number}", listed, files])
    return table(["Scenario", "Tests", "In `tests/`"], lines)


def faults() -> str:
    """Return what can happen to a simulated region."""
    return table(
        ["Fault", "What happens"], [[code(f.__name__), sentence(f)] for f in dict.fromkeys((*FAULTS, *DRAWN_APART))]
    )


def metric_table(metrics: Iterable[Metric[Any]]) -> str:
    """Return metrics as they are declared; their names and helps say the units."""
    return listed([code(f"{m.name}{{{','.join(m.labels)}}}"), m.help] for m in metrics)


BLOCKS: Mapping[str, Callable[[], str]] = {
    "region-states": lambda: values_of(rows, rows.RegionState),
    "desired-state": lambda: values_of(values, DesiredState),
    "halt-reasons": lambda: values_of(rows, rows.HaltReason),
    "liveness-rules": lambda: values_of(waits, waits.Rule),
    "lag-verdicts": lambda: values_of(lag, lag.LagVerdict),
    "incidents": lambda: values_of(incidents, incidents.IncidentKind),
    "lag-to-do": lambda: grouped(lag.TO_DO.items()),
    "lag-tiers": lambda: table(
        ["Up to an age of", "One sample of a group in"], [[_span(age), _span(step)] for age, step in lag.TIERS]
    ),
    "metrics": lambda: metric_table(METRICS),
    "member-metrics": lambda: metric_table(MEMBER_METRICS),
    "task-metrics": lambda: metric_table(TASK_METRICS),
    "member-states": lambda: values_of(member_state, member_state.State),
    "member-whys": lambda: values_of(member_state, member_state.Why),
    "member-table": member_table,
    "batch-phases": lambda: values_of(member_state, member_state.BatchPhase),
    "checkpoint-purposes": lambda: values_of(rows, rows.CheckpointPurpose),
    "request-states": lambda: values_of(rows, rows.RequestState),
    "checkpoint-states": lambda: values_of(rows, rows.CheckpointState),
    "committed": lambda: values_of(rows, rows.Committed),
    "reset-states": lambda: values_of(rows, rows.ResetState),
    "reset-causes": causes,
    "person-reset-states": lambda: values_of(rows, rows.PersonResetState),
    "seek-sources": lambda: values_of(offsets, offsets.SeekSource),
    "outcomes": lambda: values_of(rows, rows.Outcome),
    "region-events": lambda: classes(events, events.BODIES.values()),
    "member-events": lambda: classes(member_events, [get_origin(e) or e for e in get_args(member_events.Event)]),
    "commands": lambda: classes(
        commands, (c for c in vars(commands).values() if isinstance(c, type) and commands.Command in c.__bases__)
    ),
    # The first kind of effect is any command, which has a table of its own.
    "member-effects": lambda: classes(member_effects, get_args(member_effects.Effect)[1:]),
    "errors": error_table,
    "timeouts": timeout_table,
    "derived-times": derived_times,
    "read-options": lambda: listed([code(n), code(v)] for n, v in reads.DEFAULTS.items()),
    "timeout-rules": timeout_rules,
    "spec": spec_table,
    "refused-settings": refused_settings,
    "invariants": invariants,
    "invariant-claims": invariant_claims,
    "targets": target_table,
    "schema-revision": revision,
    "scenarios": scenarios,
    "faults": faults,
    "lineage-facets": lineage_facets,
    "spans": lambda: listed([code(name), what] for name, what in traces.SPANS.items()),
    "airflow-connection": airflow_pages.connection_fields,
    "airflow-options": airflow_pages.options,
    "airflow-operators-common": lambda: airflow_pages.common("hooks", "kcr", "RegionTask"),
    "airflow-operators-waiting": airflow_pages.waiting,
    "airflow-operators-shared": lambda: airflow_pages.shared_arguments("operators"),
    "airflow-commands": airflow_pages.commands,
    "airflow-operators": lambda: airflow_pages.described("operators"),
    "airflow-sensors-common": lambda: "\n".join(
        (airflow_pages.common("hooks", "kcr", "RegionTask"), airflow_pages.common("sensors", "region", "RegionSensor"))
    ),
    "airflow-sensors": lambda: airflow_pages.described("sensors"),
    "airflow-notifiers": airflow_pages.notifiers,
}


def renewed(text: str) -> str:
    """Return a page with its generated blocks as they have to be."""
    return BLOCK.sub(lambda m: f"{m[1]}\n{BLOCKS[m['name']]()}\n\n{m[3]}", text)


def pages() -> list[Path]:
    """Return every page for users, then those for people who change the project."""
    return [TOP / "README.md", *sorted(DOCS.rglob("*.md")), *sorted(ANNEX.glob("*.md"))]


def main() -> None:
    """Renew every page that is not current."""
    for path in pages():
        text = path.read_text(encoding="utf-8")
        fresh = renewed(text)
        if fresh != text:
            path.write_text(fresh, encoding="utf-8")
            print(path.relative_to(TOP))  # noqa: T201 - the answer of the command


if __name__ == "__main__":
    main()
