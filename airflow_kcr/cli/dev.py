"""`kcr dev`: services on this machine for development."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from airflow_kcr.cli.endings import reported
from airflow_kcr.cli.options import Output
from airflow_kcr.cli.results import Result, note, show

if TYPE_CHECKING:
    from airflow_kcr.embedded.services import Service


app = typer.Typer(
    name="dev",
    help="Run Kafka, Postgres, Spark and Airflow on this machine for development.",
    no_args_is_help=True,
)

Folder = Annotated[
    Path | None,
    typer.Option(
        envvar="KCR_DEV_FOLDER",
        help="The folder for the services' state, data and logs.",
        show_default="airflow-kcr/dev in ~/.local/state",
        show_envvar=True,
    ),
]


Without = Annotated[
    list[str] | None,
    typer.Option(metavar="SERVICE", help="Don't start this service, airflow or spark; may be repeated."),
]


Listen = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="The IPv4 address of this machine at which Kafka and Postgres listen, so that containers and other "
        "machines reach them. Neither asks for a password: all who reach the address can read and write.",
        show_default="127.0.0.1",
    ),
]


@app.command()
@reported
def up(folder: Folder = None, without: Without = None, listen: Listen = None, output: Output = None) -> None:
    """Start the services that aren't running, with their previous data, and leave them running.

    The first run downloads Kafka and Spark's Kafka connector from Maven Central, about 45 MB.

    Example: kcr dev up --without airflow
    """
    from airflow_kcr.embedded import services

    where = _absolute(folder)
    show(_answer(where, services.up(where, note, tuple(without or ()), listen=listen)), output)


@app.command()
@reported
def down(folder: Folder = None, output: Output = None) -> None:
    """Stop all services; keep their data.

    Example: kcr dev down
    """
    from airflow_kcr.embedded import services

    where = _absolute(folder)
    show(_answer(where, services.down(where, note)), output)


@app.command()
@reported
def status(folder: Folder = None, output: Output = None) -> None:
    """Show which services are running, and their addresses.

    Example: kcr dev status -o json
    """
    from airflow_kcr.embedded import services

    where = _absolute(folder)
    show(_answer(where, services.status(where)), output)


def _absolute(folder: Path | None) -> Path:
    from airflow_kcr.embedded.services import default_folder

    return default_folder() if folder is None else folder.expanduser().absolute()


def _answer(folder: Path, running: Mapping[str, Service]) -> Result:
    from airflow_kcr.embedded import services

    shown = {"kafka": "kafka", "store": "postgres", "spark": "spark", "airflow": "airflow"}
    rows = [
        {"service": name, "up": service in running, "address": running[service].address if service in running else None}
        for name, service in shown.items()
    ]
    return Result(document=services.document(folder, running), columns=("service", "up", "address"), rows=rows)
