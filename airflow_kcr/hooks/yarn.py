"""Applications on YARN, as its resource manager tells of them: it says at once that one is over, and how.

It is asked where its client has found the application's page, over HTTP and without a login. A cluster with Kerberos
refuses that, and a proxy apart from the resource manager doesn't know the question.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from typing import Any, Final, Self
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from airflow_kcr.errors import ServiceFailed
from airflow_kcr.hooks.shared_answers import SharedAnswer

TAG: Final = "kcr-application"
"""The tag of drivers' applications, by which one list has all of them."""

_ANSWER_WITHIN: Final = 5.0
_APPLICATIONS: Final = "ws/v1/cluster/apps"
_OVER: Final = frozenset({"FINISHED", "FAILED", "KILLED"})
_STATUS: Final = re.compile(r"exited with status (\d+)")
"""What Spark's application master says of the driver's process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationEnd:
    """How an application has ended."""

    status: int
    """The driver's; 1 where YARN doesn't know it."""

    reason: str
    """YARN's word, as `FAILED` or `KILLED`."""

    diagnostics: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverApplication:
    """The application of a driver on YARN, and who is asked about it."""

    manager: str
    """Address of the resource manager, `http://HOST:PORT`."""

    application: str

    def __str__(self) -> str:
        return f"YARN's application {self.application}"

    @classmethod
    def of(cls, page: str, application: str) -> Self:
        """Return what is at an application's page, as YARN's client reports it."""
        found = urlsplit(page)
        return cls(manager=f"{found.scheme}://{found.netloc}", application=application)

    def end(self) -> ApplicationEnd | None:
        """Return how the application has ended; None: it has not.

        Raises:
            ServiceFailed: the resource manager can't be asked.
        """
        if self.application in _shared(self.manager).get():
            return None
        told = _asked(f"{self.manager}/{_APPLICATIONS}/{self.application}", "app")
        if told is None:
            return ApplicationEnd(status=1, reason="the resource manager doesn't know it any more")
        if told["state"] not in _OVER:
            return None
        final, diagnostics = told["finalStatus"], told.get("diagnostics") or ""
        found = _STATUS.search(diagnostics)
        status = int(found[1]) if found else int(final != "SUCCEEDED")
        return ApplicationEnd(status=status, reason=final, diagnostics=tuple(diagnostics.split("\n")))


@cache
def _shared(manager: str) -> SharedAnswer[frozenset[str]]:
    """Return what all tasks of this process share: the applications with our tag that are not over."""
    states = "NEW,NEW_SAVING,SUBMITTED,ACCEPTED,RUNNING"
    page = f"{manager}/{_APPLICATIONS}?applicationTags={TAG}&states={states}&deSelects=resourceRequests"

    def ask() -> frozenset[str]:
        return frozenset(one["id"] for one in (_asked(page, "apps") or {}).get("app", ()))

    return SharedAnswer(ask)


def _asked(page: str, what: str) -> dict[str, Any] | None:
    """Return what the resource manager says, whose answer has one entry; None: it doesn't know it.

    Raises:
        ServiceFailed: it can't be asked.
    """
    try:
        request = Request(page, headers={"Accept": "application/json"})  # noqa: S310 (as Spark's client says it)
        with urlopen(request, timeout=_ANSWER_WITHIN) as answer:  # noqa: S310
            told: dict[str, Any] | None = json.load(answer)[what]
            return told
    except HTTPError as error:
        with error:
            if error.code == HTTPStatus.NOT_FOUND and b"RemoteException" in error.read():
                return None
        raise ServiceFailed(f"{page} answered {error.code} {error.reason}") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ServiceFailed(f"{page} can't be asked: {error}") from error
