"""How results are written: a table for people, JSON and CSV for programs, on standard output and nothing else there."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import typer

from airflow_kcr.cli.options import Format

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

Row: TypeAlias = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a command found out."""

    document: object
    """Its JSON."""

    columns: Sequence[str]
    """Of the CSV, by the keys of the rows; and of the table, unless `table` says otherwise."""

    rows: Sequence[Row]
    table: Sequence[str] | None = None
    """The columns of the table, where people look at others than programs do."""

    table_rows: Sequence[Row] | None = None
    """The rows of the table, where those are others too."""

    facts: Mapping[str, object] | None = None
    """What stands above the table, name and value; only people see it."""

    numbers: frozenset[str] = frozenset()
    """The columns that are aligned to the right."""

    empty: str = ""
    """What to say, on standard error, to a person who gets a table without rows."""


def chosen(output: Format | None) -> Format:
    """Return the format that was asked for, or the one that suits whoever reads standard output."""
    if output is not None:
        return output
    return Format.TABLE if sys.stdout.isatty() else Format.JSON


def show(answer: Answer, output: Format | None) -> None:
    """Write a command's result to standard output."""
    match chosen(output):
        case Format.JSON:
            typer.echo(json.dumps(answer.document, indent=2, ensure_ascii=False))
        case Format.CSV:
            typer.echo(_csv(answer), nl=False)
        case Format.TABLE:
            _show_table(answer)


def show_line(document: object) -> None:
    """Write one JSON document in a line of its own: for results that go on."""
    typer.echo(json.dumps(document, ensure_ascii=False))


def note(text: str) -> None:
    """Say something to a person: on standard error, beside the result."""
    typer.echo(f"kcr: {text}", err=True)


def plain(value: object) -> str:
    """Return a value as a cell of a table has it."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case _:
            return str(value)


def csv_line(cells: Iterable[object]) -> str:
    """Return cells as a line of CSV, without its end."""
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(map(_cell, cells))
    return text.getvalue()


def _csv(answer: Answer) -> str:
    lines = [answer.columns, *([row[column] for column in answer.columns] for row in answer.rows)]
    return "".join(f"{csv_line(line)}\n" for line in lines)


def _cell(value: object) -> object:
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case _:
            return value


def _show_table(answer: Answer) -> None:
    rows = answer.rows if answer.table_rows is None else answer.table_rows
    parts = [] if answer.facts is None else [_facts(answer.facts)]
    if rows:
        parts.append(_table(answer, rows))
    elif answer.empty:
        note(answer.empty)
    console = _console()
    with console.capture() as captured:
        for number, part in enumerate(parts):
            console.print(*([""] if number else []), part, sep="\n")
    # Tables are padded to their width; nobody wants that in a file, a diff or a terminal that is copied from.
    typer.echo("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()), nl=False)


def _console() -> Console:
    from rich.console import Console

    # In a file or a pipe a line is as long as it needs to be: nothing is cut off or wrapped there.
    return Console(highlight=False, width=None if sys.stdout.isatty() else 10_000)


def _facts(facts: Mapping[str, object]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        if value not in (None, ""):
            table.add_row(Text(name, style="bold"), Text(plain(value)))
    return table


def _table(answer: Answer, rows: Sequence[Row]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    columns = answer.table or answer.columns
    for column in columns:
        right = column in answer.numbers
        table.add_column(column, justify="right" if right else "left", no_wrap=right)
    for row in rows:
        # As Text, because names such as flights-etl[0] would be read as markup.
        table.add_row(*(Text(plain(row[column])) for column in columns))
    return table
