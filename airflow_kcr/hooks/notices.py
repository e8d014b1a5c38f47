"""Notices: what people are told of a region, through other notifiers of Airflow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, cast

from airflow.sdk import BaseNotifier

from airflow_kcr.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.types import Logger


def checked(notifiers: Sequence[BaseNotifier] | BaseNotifier) -> list[BaseNotifier]:
    """Return notifiers as a list.

    Raises:
        ConfigurationError: there is no notifier, or one is none.
    """
    given: list[object] = [notifiers] if isinstance(notifiers, BaseNotifier) else list(notifiers)
    found = [one for one in given if isinstance(one, BaseNotifier)]
    if not found or len(found) < len(given):
        raise ConfigurationError(f"notifiers are Airflow's, such as SmtpNotifier, at least one, not {notifiers!r:.60}")
    return found


def send(notifiers: Sequence[BaseNotifier], context: Context, said: Mapping[str, str], log: Logger) -> list[str]:
    """Call all notifiers, and return which of them failed, with the kind of error.

    Args:
        notifiers: whom to call; a call changes none of them, so that the next one renders its templates again.
        context: the task's.
        said: what their templates have as `kcr`.
        log: has the error of each.
    """
    failed = []
    for notifier in notifiers:
        name = type(notifier).__name__
        try:
            copy(notifier)(cast("Context", {**context, "kcr": said}))
        except Exception as error:  # others' code, and the next one is to be called all the same
            log.exception("Notifier %s failed", name)
            # Its text may hold the address that it posts to. Only the task's log has it, as with any notifier:
            # there Airflow masks the secrets of its connections.
            failed.append(f"{name} ({type(error).__name__})")
    return failed
