"""Archives and drops the history that is old enough."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk.exceptions import AirflowFailException

from airflow_kcr.operators.base import RegionOperator

if TYPE_CHECKING:
    from airflow.sdk import Context


class KcrCloseHistoryOperator(RegionOperator):
    """Certifies what is new, and archives and drops what is older than the spec's `history.keep`.

    As `kcr history close` does. Run it once a day, on a worker that has the folder `history.archive`. Where a
    certificate or an invariant is contradicted the task fails for good, and nothing is dropped; where the archive can't
    be written, it fails and a retry goes on.
    """

    def execute(self, context: Context) -> dict[str, object]:
        """Close, and return what was archived and dropped.

        Raises:
            AirflowFailException: the history contradicts an invariant or a certificate.
        """
        with self.lent(context) as region:
            closing = region.close_history()
        for violation in closing.violations:
            self.log.error("%s: %s", violation.invariant, violation.detail)
        if closing.violations:
            raise AirflowFailException(f"the history of {self.region} has {len(closing.violations)} violation(s)")
        self.log.info(
            "Archived %d file(s) of region %s; dropped %d events and %d batches",
            len(closing.archived),
            self.region,
            closing.events,
            closing.batches,
        )
        return closing.to_json()
