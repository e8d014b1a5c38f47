"""The options and arguments that commands share."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Final

import typer

from airflow_kcr.cli.results import OutputFormat
from airflow_kcr.errors import ConfigurationError
from airflow_kcr.protocol.values import parse_duration, parse_instant

TEN_MINUTES: Final = timedelta(minutes=10)


def duration(text: str | timedelta) -> timedelta:
    """Return what a duration's text says; a default is one already."""
    try:
        return text if isinstance(text, timedelta) else parse_duration(text)
    except ConfigurationError as error:
        raise typer.BadParameter(error.message) from None


def instant(text: str) -> datetime:
    """Return what an instant's text says."""
    try:
        return parse_instant(text)
    except ConfigurationError as error:
        raise typer.BadParameter(error.message) from None


def _warned_of_password(context: typer.Context, value: str | None) -> str | None:
    """Warn of a password in --store: other users of the machine can read a process's arguments."""
    source = context.get_parameter_source("store")
    if source is not None and source.name == "COMMANDLINE" and _has_password(value or ""):
        typer.echo(
            "kcr: others on this machine can read the password in --store; use KCR_STORE_URL, PGPASSWORD or a passfile",
            err=True,
        )
    return value


def _has_password(url: str) -> bool:
    from urllib.parse import parse_qsl, urlsplit

    from airflow_kcr.settings import names_secret

    try:
        parts = urlsplit(url)
        return parts.password is not None or any(names_secret(name) for name, _ in parse_qsl(parts.query))
    except ValueError:
        return False  # opening the store reports what is wrong with it


def complete_regions(context: typer.Context, incomplete: str) -> list[str]:
    """Return the regions of the store whose names begin so; none where the store does not answer soon."""
    from airflow_kcr.api.regions import names_for_completion

    return [name for name in names_for_completion(context.params.get("store")) if name.startswith(incomplete)]


_STORE: Final = typer.Option(
    "--store",
    envvar="KCR_STORE_URL",
    metavar="URL",
    help="The region store, postgresql://USER@HOST/DATABASE. Put passwords in PGPASSWORD, a passfile or KCR_STORE_URL.",
    show_default=False,
    show_envvar=True,
    callback=_warned_of_password,
)
Url = Annotated[str, _STORE]
OptionalUrl = Annotated[str | None, _STORE]
Output = Annotated[
    OutputFormat | None,
    typer.Option(
        "--output",
        "-o",
        help="The output format. Default: a table on a terminal, JSON anywhere else.",
        show_default=False,
    ),
]
Name = Annotated[str, typer.Argument(metavar="REGION", help="The region's name.", autocompletion=complete_regions)]
Checkpoint = Annotated[int, typer.Argument(metavar="SEQUENCE", min=1, help="The checkpoint's sequence.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait until it is done, and show what it waits for.")]
Timeout = Annotated[
    timedelta,
    typer.Option(
        parser=duration,
        metavar="DURATION",
        help="How long to wait, such as 5m or PT5M; needs --wait.",
        show_default="10m",
    ),
]


Last = Annotated[int, typer.Option("--last", "-n", min=1, help="Show the last N.")]
Before = Annotated[int | None, typer.Option(min=1, help="Show those with a lower sequence.", show_default=False)]


def dag_run_named(text: str | None) -> str | None:
    """Return an option's value, the name of a DAG run as `DAG_ID/RUN_ID`, or nothing.

    Raises:
        BadParameter: it is not of that form.
    """
    if text and not all(text.partition("/")[::2]):
        raise typer.BadParameter("write DAG_ID/RUN_ID")
    return text


DagRun = Annotated[
    str,
    typer.Option(
        "--dag-run",
        metavar="DAG_ID/RUN_ID",
        help="The DAG run that asks, as the history will name it. Airflow's tasks set it.",
        callback=dag_run_named,
    ),
]


def _setting(text: str) -> str:
    name, equals, _ = text.partition("=")
    if not equals or not name.strip():
        # Never as it stands: it may be a value whose name was forgotten.
        raise typer.BadParameter("a setting has no name, or no value; write NAME=VALUE")
    return text


def settings_given(texts: list[str] | None) -> list[str] | None:
    """Refuse texts that are no NAME=VALUE."""
    return texts and [_setting(text) for text in texts]


def without_secrets(texts: list[str] | None, instead: str) -> list[str] | None:
    """Refuse settings that hold a secret, by their names."""
    from airflow_kcr.settings import secrets_in

    given = settings_given(texts)
    if seen := secrets_in(settings_of(given)):
        raise typer.BadParameter(
            f"{', '.join(seen)}: others on this machine can read a secret in the command line; {instead}"
        )
    return given


def settings_of(texts: list[str] | None) -> dict[str, str]:
    """Return settings by name, of texts NAME=VALUE."""
    return {name.strip(): value for name, _, value in (text.partition("=") for text in texts or [])}


def _conf_given(texts: list[str] | None) -> list[str] | None:
    return without_secrets(
        texts, "write it into spark-defaults.conf (SPARK_CONF_DIR), or hand it over in the environment"
    )


Conf = Annotated[
    list[str] | None,
    typer.Option(
        "--conf",
        metavar="NAME=VALUE",
        help="A Spark setting; may be repeated. Settings that hold a secret are refused.",
        callback=_conf_given,
    ),
]
