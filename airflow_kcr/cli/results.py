"""What a command found out, and how it is written, alone on standard output: a table, JSON or CSV."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import typer

if TYPE_CHECKING:
    from rich.console import RenderableType

    from airflow_kcr.api.views import AnswerColumns

A = TypeVar("A")


class OutputFormat(StrEnum):
    """How a result is written to standard output."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


Row: TypeAlias = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a command found out."""

    document: object
    """Its JSON."""

    columns: Sequence[str]
    """Of the CSV, by the keys of the rows; and of the table, unless `table` says otherwise."""

    rows: Sequence[Row]
    table: Sequence[str] | None = None
    """The columns of the table, if people should see others than programs."""

    table_rows: Sequence[Row] | None = None
    """The rows of the table, where those are others too."""

    facts: Mapping[str, object] | None = None
    """What stands above the table, name and value; only people see it."""

    empty: str = ""
    """What to say, on standard error, to a person who gets a table without rows."""


def listed(shown: AnswerColumns[A], answers: Sequence[A], empty: str = "") -> Result:
    """Return answers of one kind, a row for each."""
    return Result(
        document=[shown.document(one) for one in answers],
        columns=shown.data,
        rows=[shown.document(one, {*shown.data, *shown.table}) for one in answers],
        table=shown.table,
        empty=empty,
    )


def chosen(output: OutputFormat | None) -> OutputFormat:
    """Return the requested format, or the one that suits standard output."""
    if output is not None:
        return output
    return OutputFormat.TABLE if sys.stdout.isatty() else OutputFormat.JSON


def show(result: Result, output: OutputFormat | None) -> None:
    """Write a command's result to standard output."""
    match chosen(output):
        case OutputFormat.JSON:
            typer.echo(json.dumps(result.document, indent=2, ensure_ascii=False))
        case OutputFormat.CSV:
            typer.echo(_csv(result), nl=False)
        case OutputFormat.TABLE:
            _show_table(result)


def show_line(document: object) -> None:
    """Write one JSON document in a line of its own: for results that continue."""
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
        case list():
            return ", ".join(map(str, value))
        case _:
            return str(value)


def csv_line(cells: Iterable[object]) -> str:
    """Return cells as a line of CSV, without its end."""
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(map(_cell, cells))
    return text.getvalue()


def _csv(result: Result) -> str:
    lines = [result.columns, *([row[column] for column in result.columns] for row in result.rows)]
    return "".join(f"{csv_line(line)}\n" for line in lines)


def _cell(value: object) -> object:
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case list():
            return " ".join(str(_cell(one)) for one in value)
        case dict():  # a DAG run: DAG/RUN, as options take it
            return "/".join(map(str, value.values()))
        case _:
            return value


def _show_table(result: Result) -> None:
    from rich.console import Console

    rows = result.rows if result.table_rows is None else result.table_rows
    parts = [] if result.facts is None else [_facts(result.facts)]
    if rows:
        parts.append(_table(result, rows))
    elif result.empty:
        note(result.empty)
    # In a file or a pipe a line is as long as it needs to be: nothing is cut off or wrapped there.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 10_000)
    with console.capture() as captured:
        for number, part in enumerate(parts):
            console.print(*([""] if number else []), part, sep="\n")
    # Tables are padded to their width; trailing blanks would be in the way in files, diffs and copied text.
    typer.echo("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()), nl=False)


def _facts(facts: Mapping[str, object]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        if value not in (None, "", []):
            table.add_row(Text(name, style="bold"), Text(plain(value)))
    return table


def _table(result: Result, rows: Sequence[Row]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    columns = result.table or result.columns
    for column in columns:
        values = [row[column] for row in rows if row[column] is not None]
        right = bool(values) and all(type(value) in {int, float} for value in values)
        table.add_column(column, justify="right" if right else "left", no_wrap=right)
    for row in rows:
        # As Text, because names such as flights-etl[0] would be read as markup.
        table.add_row(*(Text(plain(row[column])) for column in columns))
    return table
