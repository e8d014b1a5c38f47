"""Applications on YARN, as its resource manager tells of them: it says at once that one is over, and how.

It is asked where its client has found the application's page, over HTTP and without a login. A cluster with Kerberos
refuses that, and a proxy apart from the resource manager doesn't know the question.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, Self
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from airflow_kcr.errors import ServiceFailed

_ANSWER_WITHIN: Final = 5.0
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
        told = self._asked()
        if told is None:
            return ApplicationEnd(status=1, reason="the resource manager doesn't know it any more")
        if told["state"] not in _OVER:
            return None
        final, diagnostics = told["finalStatus"], told.get("diagnostics") or ""
        found = _STATUS.search(diagnostics)
        status = int(found[1]) if found else int(final != "SUCCEEDED")
        return ApplicationEnd(status=status, reason=final, diagnostics=tuple(diagnostics.split("\n")))

    def _asked(self) -> dict[str, Any] | None:
        """Return what the resource manager says of the application; None: it has none of this name."""
        path = f"{self.manager}/ws/v1/cluster/apps/{self.application}"
        try:
            request = Request(path, headers={"Accept": "application/json"})  # noqa: S310 (as Spark's client says it)
            with urlopen(request, timeout=_ANSWER_WITHIN) as answer:  # noqa: S310
                told: dict[str, Any] = json.load(answer)["app"]
                return told
        except HTTPError as error:
            with error:
                if error.code == HTTPStatus.NOT_FOUND and b"RemoteException" in error.read():
                    return None
            raise ServiceFailed(f"{path} answered {error.code} {error.reason}") from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ServiceFailed(f"{path} can't be asked: {error}") from error
