"""Checks a region's groups before something is asked of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowException

from airflow_kcr.hooks.failing import translated
from airflow_kcr.hooks.links import RegionLink
from airflow_kcr.operators.base import RegionOperator

if TYPE_CHECKING:
    from airflow.sdk import Context


class KcrValidateGroupOperator(RegionOperator):
    """Checks that a region's groups are what the region takes them for, as `kcr group validate` does; changes nothing.

    Fails with every check that failed or could not be made. It may be retried: members that are being started, for one,
    are missing only for a while.

    Args:
        groups: which of the region's groups, by their ids (templated); None: all.
        kwargs: as for every operator; `region` and `kcr_conn_id` among them.
    """

    template_fields = (*RegionOperator.template_fields, "groups")

    def __init__(self, *, groups: Sequence[str] | None = None, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(**kwargs)
        self.groups = groups

    def execute(self, context: Context) -> dict[str, object]:
        """Make the checks, and return how many were fine and what the warnings say.

        Raises:
            AirflowException: a check failed, or could not be made.
        """
        from airflow_kcr.protocol.evidence import Verdict

        RegionLink().persist(context, self.region, self.kcr_conn_id)
        with translated():
            found = self.hook.validate(self.region, self.groups)
        said: dict[Verdict, list[str]] = {verdict: [] for verdict in Verdict}
        for check in found.checks:
            sentence = f"{check.group}, {check.question}: {check.detail}"
            said[check.verdict].append(sentence)
            self.log.info("%s: %s", check.verdict, sentence)
        if not found.is_all_right:
            bad = [f"{v} {s}" for v in (Verdict.FAILED, Verdict.UNKNOWN) for s in said[v]]
            raise AirflowException(
                f"{len(bad)} check(s) of the groups of region {self.region} did not pass: {'; '.join(bad)}"
            )
        return {"region": self.region, "ok": len(said[Verdict.OK]), "warnings": said[Verdict.WARNING]}
