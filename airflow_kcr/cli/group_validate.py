"""`kcr group validate`: checks a region's consumer groups against Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from airflow_kcr.cli.options import Name, Output, Url
from airflow_kcr.cli.output import Answer, show
from airflow_kcr.cli.reporting import reported
from airflow_kcr.cli.session import store_of

if TYPE_CHECKING:
    from airflow_kcr.protocol.evidence import Check

COLUMNS: Final = ("group", "check", "verdict", "detail")

Groups = Annotated[
    list[str] | None,
    typer.Option("--group", metavar="GROUP", help="Only this group; may be repeated.", show_default=False),
]


@reported
def validate(region: Name, store: Url, group: Groups = None, output: Output = None) -> None:
    """Validate a region's consumer groups against Kafka; change nothing.

    Exits with status 0 if every check passes or only warns, and with 1 if a check fails or can't be made.

    Example: kcr group validate flights

    Example: kcr group validate flights --group flights-etl -o json
    """
    from airflow_kcr.api.validation import real_reader
    from airflow_kcr.api.validation import validate as checked
    from airflow_kcr.kafka import settings as kafka_names
    from airflow_kcr.protocol.values import GroupId, region_name

    with store_of(store) as opened:
        groups = [GroupId(g) for g in group] if group else None
        found = checked(opened, region_name(region), real_reader, kafka_names, groups)
    show(answer_of(found.checks), output)
    if not found.is_all_right:
        raise typer.Exit(1)


def answer_of(checks: tuple[Check, ...]) -> Answer:
    """Return the checks as they are shown, one line each."""
    rows = [
        {"group": str(c.group), "check": str(c.question), "verdict": str(c.verdict), "detail": c.detail} for c in checks
    ]
    return Answer(document=rows, columns=COLUMNS, rows=rows)
