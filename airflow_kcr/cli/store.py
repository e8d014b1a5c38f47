"""`kcr store`: the schema of the region store."""

from __future__ import annotations

from typing import Annotated

import typer

from airflow_kcr.cli.reporting import reported

app = typer.Typer(
    name="store", help="The region store's schema: where it stands, and its migrations.", no_args_is_help=True
)

Url = Annotated[
    str,
    typer.Option(
        "--store",
        envvar="KCR_STORE_URL",
        help="postgresql://USER@HOST/DATABASE; the password comes from PGPASSWORD, a passfile or KCR_STORE_URL.",
        show_default=False,
        show_envvar=True,
    ),
]


@app.command()
@reported
def upgrade(store: Url) -> None:
    """Bring the store to the newest schema; where it is there already, nothing changes."""
    from airflow_kcr.store import schema_upgrade

    found = schema_upgrade.upgrade(store)
    typer.echo(f"the store is at revision {found.current}")


@app.command()
@reported
def status(store: Url) -> None:
    """Show which revision the store has, and which one this program needs."""
    from airflow_kcr.store import schema_upgrade

    found = schema_upgrade.status(store)
    typer.echo(f"the store is at revision {found.current or 'none'}, this program needs {found.head}")
    schema_upgrade.require_revision(found.current)
