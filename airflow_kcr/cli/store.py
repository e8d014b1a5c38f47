"""`kcr store`: the schema of the region store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from airflow_kcr.cli.options import Output, Url
from airflow_kcr.cli.output import Answer, reported, show

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

    show(_answer(schema_upgrade.upgrade(_checked(store))), output)


@app.command()
@reported
def status(store: Url, output: Output = None) -> None:
    """Show the store's schema revision and the one this program needs; exit with status 4 if they differ.

    Example: kcr store status
    """
    from airflow_kcr.store import schema_upgrade

    found = schema_upgrade.status(_checked(store))
    show(_answer(found), output)
    schema_upgrade.require_revision(found.current)


def _checked(store: str) -> str:
    from airflow_kcr.api import store_url

    return store_url(store).render_as_string(hide_password=False)


def _answer(found: SchemaStatus) -> Answer:
    document = {"current": found.current, "needed": found.head, "is_current": found.is_current}
    return Answer(document=document, columns=tuple(document), rows=[document])
