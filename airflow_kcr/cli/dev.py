"""`kcr dev`: real Kafka, Postgres, Spark and Airflow on this machine, left running."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from airflow_kcr.cli.options import Output
from airflow_kcr.cli.output import Answer, note, show
from airflow_kcr.cli.reporting import reported

if TYPE_CHECKING:
    from airflow_kcr.embedded.services import StatusJson

app = typer.Typer(
    name="dev",
    help="Kafka, Postgres, Spark and Airflow for trying things out: started on this machine, and left running.",
    no_args_is_help=True,
)

Folder = Annotated[
    Path | None,
    typer.Option(
        envvar="KCR_DEV_FOLDER",
        help="Where the services keep their state, data and logs.",
        show_default="airflow-kcr/dev in ~/.local/state",
        show_envvar=True,
    ),
]


Without = Annotated[
    list[str] | None,
    typer.Option(metavar="SERVICE", help="A service that is not started, airflow or spark; may be repeated."),
]


@app.command()
@reported
def up(folder: Folder = None, without: Without = None, output: Output = None) -> None:
    """Start what is not up yet, with the data it had, and leave it running.

    The first time it downloads Kafka and the connector of Spark from Maven Central, some 45 MB.

    Example: kcr dev up --without airflow
    """
    from airflow_kcr.embedded import services

    show(_answer(services.up(_absolute(folder), note, tuple(without or ()))), output)


@app.command()
@reported
def down(folder: Folder = None, output: Output = None) -> None:
    """Stop all of them; their data stay.

    Example: kcr dev down
    """
    from airflow_kcr.embedded import services

    show(_answer(services.down(_absolute(folder), note)), output)


@app.command()
@reported
def status(folder: Folder = None, output: Output = None) -> None:
    """Show which of them are up, and where they are reached.

    Example: kcr dev status -o json
    """
    from airflow_kcr.embedded import services

    show(_answer(services.status(_absolute(folder))), output)


def _absolute(folder: Path | None) -> Path:
    from airflow_kcr.embedded.services import default_folder

    return default_folder() if folder is None else folder.expanduser().absolute()


def _answer(found: StatusJson) -> Answer:
    kafka, spark, airflow = found["kafka"], found["spark"], found["airflow"]
    reached = {
        "kafka": kafka["bootstrap_servers"] if kafka else None,
        "store": found["store_url"],
        "spark": spark["master"] if spark else None,
        "airflow": airflow["url"] if airflow else None,
    }
    rows = [{"service": name, "up": address is not None, "address": address} for name, address in reached.items()]
    return Answer(document=found, columns=("service", "up", "address"), rows=rows)
