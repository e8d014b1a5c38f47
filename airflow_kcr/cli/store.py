"""`kcr store` and `kcr doctor`: the store's schema, and whether members can run on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from airflow_kcr.cli.endings import reported
from airflow_kcr.cli.group import CHECKED
from airflow_kcr.cli.inputs import spec_in
from airflow_kcr.cli.options import OptionalUrl, Output, Url
from airflow_kcr.cli.results import Result, listed, show

if TYPE_CHECKING:
    from airflow_kcr.store.schema_upgrade import SchemaStatus

app = typer.Typer(name="store", help="Create, upgrade and show the region store's schema.", no_args_is_help=True)


@app.command()
@reported
def upgrade(store: Url, output: Output = None) -> None:
    """Create the store's schema, or upgrade it to the newest revision; change nothing if it is current.

    Example: kcr store upgrade --store postgresql://kcr@localhost/kcr
    """
    from airflow_kcr.store import schema_upgrade

    show(_schema(schema_upgrade.upgrade(_checked(store))), output)


@app.command("status")
@reported
def schema_status(store: Url, output: Output = None) -> None:
    """Show the store's schema revision and the one this program needs; exit with status 4 if they differ.

    Example: kcr store status
    """
    from airflow_kcr.store import schema_upgrade
    from airflow_kcr.store.postgres.revision import require_revision

    found = schema_upgrade.status(_checked(store))
    show(_schema(found), output)
    require_revision(found.current)


def _checked(store: str) -> str:
    from airflow_kcr.api import store_url

    return store_url(store).render_as_string(hide_password=False)


def _schema(found: SchemaStatus) -> Result:
    document = {"current": found.current, "needed": found.head, "is_current": found.is_current}
    return Result(document=document, columns=tuple(document), rows=[document])


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
    from airflow_kcr.api.views import AnswerColumns
    from airflow_kcr.driver.doctor import examine
    from airflow_kcr.protocol.evidence import CheckVerdict

    spec = None if file is None else spec_in(file)
    found = list(examine(spec, store))
    show(listed(AnswerColumns(*CHECKED), found), output)
    if any(one.verdict in {CheckVerdict.FAILED, CheckVerdict.UNKNOWN} for one in found):
        raise typer.Exit(1)
