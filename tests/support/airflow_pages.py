"""The parts of the provider's reference page that are made from the code; read from its sources, without Airflow."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer.main

import airflow_kcr
from airflow_kcr.cli import app
from airflow_kcr.provider_info import get_provider_info

PACKAGE = Path(airflow_kcr.__file__).parent
ARGUMENT = re.compile(r"^    (\w+): (.*?)(?=^    \w+: |\Z)", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"\b(?:as|like) `kcr ([a-z ]+)`", re.IGNORECASE)

WITHOUT_OPERATOR: Mapping[str, tuple[str, ...]] = {
    "They are about one machine.": ("demo", "doctor", "export", "dev up", "dev down", "dev status"),
    "They delete for good, or show a person what to decide.": (
        *("adopt", "region delete", "region output", "group describe", "group assignment"),
    ),
    "They only read. In a task's own code, use `KcrHook.region`; to wait, a sensor.": (
        *("lag", "events", "report", "region list", "region show", "checkpoint list", "checkpoint stats"),
        *("checkpoint show", "checkpoint context", "reset list", "reset show", "ledger record", "ledger repeated"),
    ),
    "They belong to an installation. In a task's own code, use `KcrHook.store_status` and `KcrHook.upgrade_store`.": (
        *("store upgrade", "store status"),
    ),
}
"""The commands that have no operator, by the reason."""

_EVERYWHERE = (
    ("region", "The region's name (templated)."),
    ("kcr_conn_id", "The Airflow connection of the store (templated)."),
)
"""The arguments that everything takes which is about a region."""

_TEMPLATED = " (templated)"

_NOTHING = ("", "None", "False", "''", "()")
"""Defaults that are not worth a word."""


@dataclass(frozen=True, slots=True)
class Class:
    """An operator, a sensor or a notifier, as its source says."""

    module: str
    name: str
    text: str
    """What it does."""

    arguments: tuple[tuple[str, str], ...]
    """Its own ones, in order; `kwargs` among them."""

    defaults: dict[str, str | None]
    """Of those in its signature; None: it is required. The others are its parent's."""


def classes(package: str, *modules: str) -> Iterator[Class]:
    """Yield the classes of modules of a package."""
    for module in modules:
        for node in ast.parse((PACKAGE / package / f"{module}.py").read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield _read(f"airflow_kcr.{package}.{module}", node)


def arguments_of(found: Class, without: Iterable[str] = ()) -> str:
    """Return the arguments of a class as a list, but for those whose names are given; empty where it has no other."""
    lines = []
    for name, text in found.arguments:
        if name != "kwargs" and name not in without:
            default = found.defaults.get(name, "")
            shown = " (required)" if default is None else "" if default in _NOTHING else f" (`{default}`)"
            lines.append(f"- {_named(name, text)}{shown}: {text.replace(_TEMPLATED, '')}")
    return "\n".join(lines)


def described(kind: str) -> str:
    """Return every operator or sensor with what it does and its own arguments."""
    return _described(_public(kind, _modules(kind)))


def shared_arguments(kind: str) -> str:
    """Return the arguments that several operators or sensors have, each once."""
    shared = _shared(_public(kind, _modules(kind)))
    return "\n".join(f"- {_named(name, text)}: {text.replace(_TEMPLATED, '')}" for name, text in shared)


def _named(name: str, text: str) -> str:
    """Return an argument's name, with a star if it is templated."""
    return f"`{name}`\\*" if _TEMPLATED in text else f"`{name}`"


def waiting() -> str:
    """Return the names of the operators that wait, and what they take for it."""
    names = [f"`{one.name}`" for one in _public("operators", _modules("operators")) if "`deferrable`" in _rest(one)]
    arguments = common("operators", "base", "WaitingOperator")
    return f"{', '.join(names[:-1])} and {names[-1]} wait, and take:\n\n{arguments}"


def operators() -> Iterator[tuple[str, str | None]]:
    """Yield every operator, and the command whose like it says it is, by its words after `kcr`; None: it has none."""
    for found in classes("operators", *_modules("operators")):
        if found.name.startswith("Kcr"):
            named = COMMAND.search(" ".join(found.text.split()))
            yield found.name, named and named[1]


def every_command() -> list[str]:
    """Return every command, by its words after `kcr`."""
    return list(_commands(typer.main.get_command(app), ()))


def commands() -> str:
    """Return the commands without an operator by the reason, and the operators without a command."""
    lines = [
        f"- {', '.join(f'`{name}`' for name in names)}: {reason[0].lower()}{reason[1:]}"
        for reason, names in WITHOUT_OPERATOR.items()
    ]
    alone = ", ".join(f"`{name}`" for name, command in operators() if command is None)
    return "\n".join(lines) + f"\n\nOnly in Airflow: {alone}."


def _commands(command: Any, words: tuple[str, ...]) -> Iterator[str]:  # noqa: ANN401 (click has no types here)
    children = getattr(command, "commands", None)
    if children is None:
        yield " ".join(words)
        return
    for name, child in children.items():
        yield from _commands(child, (*words, name))


def notifiers() -> str:
    """Return every notifier with what it does and its arguments."""
    modules = [path.split(".")[-2] for path in get_provider_info()["notifications"]]
    return _described(_public("notifications", modules))


def _modules(kind: str) -> list[str]:
    return [path.rpartition(".")[2] for part in get_provider_info()[kind] for path in part["python-modules"]]


def _public(package: str, modules: Iterable[str]) -> list[Class]:
    return [one for one in classes(package, *modules) if one.name.startswith("Kcr")]


def _described(kinds: Iterable[Class]) -> str:
    kinds = list(kinds)
    shared, parts, module = _shared(kinds), [], ""
    for found in kinds:
        if found.module != module:
            module = found.module
            parts.append(f"### {module}")
        also = [f"`{name}`" for name, text in found.arguments if (name, text) in shared]
        parent = re.match(r"As for (`\w+`)", _rest(found))
        also += [f"those of {parent[1]}"] if parent else []
        own = arguments_of(found, [name for name, text in found.arguments if (name, text) in (*shared, *_EVERYWHERE)])
        parts += [f"#### {found.name}", found.text, own, f"Also: {', '.join(also)}." if also else ""]
    return "\n\n".join(part for part in parts if part)


def _shared(kinds: Iterable[Class]) -> list[tuple[str, str]]:
    """Return the arguments, with what they say, that several classes have and not all of them take anyway."""
    counted = Counter(one for found in kinds for one in found.arguments)
    return [one for one, number in counted.items() if number > 1 and one[0] != "kwargs" and one not in _EVERYWHERE]


def _rest(found: Class) -> str:
    return dict(found.arguments).get("kwargs", "")


def common(package: str, module: str, name: str) -> str:
    """Return the arguments that the operators or sensors built on one class have in common."""
    (found,) = (one for one in classes(package, module) if one.name == name)
    return arguments_of(found)


def connection_fields() -> str:
    """Return the fields of a connection's extra."""
    fields: dict[str, dict[str, Any]] = get_provider_info()["connection-types"][0]["conn-fields"]
    lines = ["| Field | Values | Meaning |", "|---|---|---|"]
    for name, field in fields.items():
        schema = field["schema"]
        values = ", ".join(f"`{value}`" for value in schema.get("enum", ())) or schema["type"][0]
        lines.append(f"| `{name}` | {values} | {field['description']} |")
    return "\n".join(lines)


def options() -> str:
    """Return the options of the section `[kcr]`."""
    found: dict[str, dict[str, Any]] = get_provider_info()["config"]["kcr"]["options"]
    lines = ["| Option | Default | Meaning |", "|---|---|---|"]
    lines += [f"| `{name}` | `{option['default']}` | {option['description']} |" for name, option in found.items()]
    return "\n".join(lines)


def _read(module: str, node: ast.ClassDef) -> Class:
    text = ast.get_docstring(node) or ""
    body, _, sections = text.partition("\nArgs:\n")
    listed = re.split(r"\n\n\w+:\n", sections)[0]
    return Class(
        module=module,
        name=node.name,
        text=re.split(r"\n\n(?:Raises|Args):\n", body)[0].strip(),
        arguments=tuple((name, _joined(meaning)) for name, meaning in ARGUMENT.findall(f"{listed}\n")),
        defaults=_defaults(node),
    )


def _defaults(node: ast.ClassDef) -> dict[str, str | None]:
    for function in node.body:
        if isinstance(function, ast.FunctionDef) and function.name == "__init__":
            pairs = zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
            return {one.arg: None if default is None else _shown(default) for one, default in pairs}
    return {}


def _shown(default: ast.expr) -> str:
    text = ast.unparse(default)
    known: dict[str, str] = {
        "KcrHook.default_conn_name": "'kcr_default'",
        "ONE_HOUR": "timedelta(hours=1)",
        "RETRIES": "3",
        "RETRY_DELAY": "timedelta(seconds=10)",
    }
    return known.get(text, text)


def _joined(meaning: str) -> str:
    words = " ".join(meaning.split()).rstrip()
    return (words[:1].upper() + words[1:]).replace("|", "\\|")
