"""`kcr doctor`: whether members of a region can run on this machine."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from airflow_kcr.cli.group import CHECKED
from airflow_kcr.cli.options import OptionalUrl, Output, spec_in
from airflow_kcr.cli.output import Answer, reported, show


@reported
def doctor(
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            "-f",
            help="A region spec, to check its store, pipeline, sinks, broker, rights and topics too; - reads standard "
            "input.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    store: OptionalUrl = None,
    output: Output = None,
) -> None:
    """Check whether members can run on this machine, and say what to do; change nothing.

    Checks Python, PySpark, Java and Airflow; with KCR_STORE_URL or --store, the region store; with --file, everything
    that the members of that region need, whether it is declared or not. The checks of its groups are those of kcr group
    validate. Exits with status 0 if every check passes or only warns, and with 1 if a check fails or can't be made.

    Example: kcr doctor

    Example: kcr doctor -f flights.yaml
    """
    from airflow_kcr.driver.doctor import examine
    from airflow_kcr.protocol.validation import CheckVerdict

    spec = None if file is None else spec_in(file)
    found = list(examine(spec, store))
    rows = [{**asdict(one), "verdict": str(one.verdict)} for one in found]
    show(Answer(document=rows, columns=CHECKED, rows=rows), output)
    if any(one.verdict in {CheckVerdict.FAILED, CheckVerdict.UNKNOWN} for one in found):
        raise typer.Exit(1)
