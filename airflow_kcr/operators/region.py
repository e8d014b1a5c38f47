"""Operators that declare, steer and prove a region; each does what the command of its name does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from airflow_kcr import verbs
from airflow_kcr.errors import ConfigurationError
from airflow_kcr.hooks.kcr import RegionTask, translated
from airflow_kcr.operators.base import StateOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_kcr.spec import RegionSpec


class KcrApplyRegionOperator(RegionTask):
    """Creates a region, stopped, from a spec, or changes it, like `kcr region apply`.

    An invalid spec is an import error of the DAG that names the fields. Nothing in it is templated.

    Args:
        spec: a `RegionSpec`; a mapping of the same fields; the absolute path of a YAML file; or YAML of several lines.
        start: start a stopped or halted region afterwards, or resume a paused one. Members start a stopped one by
            themselves.
        kwargs: as for every operator; `kcr_conn_id` among them.

    Raises:
        SpecError: the spec has contradictions, all of them named.
        ConfigurationError: it is none of these, or the path is not absolute.
    """

    template_fields = ("kcr_conn_id",)

    def __init__(
        self,
        *,
        spec: RegionSpec | Mapping[str, object] | str | Path,
        start: bool = False,
        **kwargs: Any,  # noqa: ANN401 (Airflow's own)
    ) -> None:
        if "region" in kwargs:
            raise ConfigurationError("the region's name is in its spec; leave `region` out")
        found = read_spec(spec)
        super().__init__(region=found.region, **kwargs)
        self.spec = found
        self.start = start

    def execute(self, context: Context) -> dict[str, object]:
        """Apply the spec, and return what was done, as `kcr region apply` shows it."""
        with self.lent(context) as region:
            applied = region.apply(self.spec)
            for difference in applied.differences:
                self.log.info("%s counts %s", difference.path, difference.takes_effect)
            if self.start:
                region.start()
        self.log.info("Region %s is %s", applied.region, applied.change)
        return applied.to_json()


def read_spec(spec: RegionSpec | Mapping[str, object] | str | Path) -> RegionSpec:
    """Return the spec, given in one of the ways that `KcrApplyRegionOperator` takes.

    Raises:
        SpecError: it has contradictions, or the file can't be read.
        ConfigurationError: it is none of these, or the path is not absolute.
    """
    from airflow_kcr.spec import RegionSpec, load, parse

    match spec:
        case RegionSpec():
            return spec
        case Mapping():
            return RegionSpec.from_json(spec)
        case str() if "\n" in spec.strip():
            return parse(spec)
        case str() | Path():
            path = Path(spec)
            if not path.is_absolute():
                raise ConfigurationError(
                    f"processes of Airflow run in different folders, so the path of a spec can't be {str(path)!r}; "
                    "write Path(__file__).parent / 'NAME.yaml'"
                )
            return load(path)
        case _:
            raise ConfigurationError(f"a spec is a RegionSpec, a mapping, a path or YAML, not {type(spec).__name__}")


class KcrStartOperator(StateOperator):
    """Starts a stopped or halted region, or resumes a paused one, like `kcr region start`; by default without waiting.

    A started region runs once its members are there, which another task may have to start.

    Args:
        wait_for_completion: whether to wait until the region is in the requested state.
        kwargs: as for every operator that waits; `region`, `kcr_conn_id`, `timeout` and `deferrable` among them.
    """

    verb = verbs.START

    def __init__(self, *, wait_for_completion: bool = False, **kwargs: Any) -> None:  # noqa: ANN401 (Airflow's own)
        super().__init__(wait_for_completion=wait_for_completion, **kwargs)


class KcrResumeOperator(KcrStartOperator):
    """Resumes a paused region, or starts a stopped or halted one, like `kcr region resume`; by default without waiting.

    Args:
        wait_for_completion: whether to wait until the region is in the requested state.
        kwargs: as for every operator that waits; `region`, `kcr_conn_id`, `timeout` and `deferrable` among them.
    """

    verb = verbs.RESUME


class KcrPauseOperator(StateOperator):
    """Pauses a region, like `kcr region pause`, and waits until its running batches have finished.

    Args:
        wait_for_completion: whether to wait until the region is in the requested state.
        kwargs: as for every operator that waits; `region`, `kcr_conn_id`, `timeout` and `deferrable` among them.
    """

    verb = verbs.PAUSE


class KcrStopOperator(StateOperator):
    """Takes a checkpoint and stops a region, like `kcr region stop`, and waits until its members have left.

    A later start processes nothing twice.

    Args:
        wait_for_completion: whether to wait until the region is in the requested state.
        kwargs: as for every operator that waits; `region`, `kcr_conn_id`, `timeout` and `deferrable` among them.
    """

    verb = verbs.STOP


class KcrKillOperator(StateOperator):
    """Stops a region without a checkpoint, like `kcr region kill`, and waits until its members have left.

    The next start replays records as each group's delivery allows. Use it only if a stop can't drain.

    Args:
        wait_for_completion: whether to wait until the region is in the requested state.
        kwargs: as for every operator that waits; `region`, `kcr_conn_id`, `timeout` and `deferrable` among them.
    """

    verb = verbs.KILL


class KcrValidateGroupOperator(RegionTask):
    """Validates a region's consumer groups against Kafka, like `kcr group validate`; changes nothing.

    Fails with the checks that failed or could not run. Retries help, for example while members are still starting.

    Args:
        groups: which groups of the region (templated); None: all.
        kwargs: as for every operator; `region` and `kcr_conn_id` among them.
    """

    template_fields = (*RegionTask.template_fields, "groups")

    def __init__(self, *, groups: Sequence[str] | None = None, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(**kwargs)
        self.groups = groups

    def execute(self, context: Context) -> dict[str, object]:
        """Make the checks, and return how many were fine and what the warnings say.

        Raises:
            AirflowException: a check failed, or could not be made.
        """
        from airflow_kcr.protocol.evidence import CheckVerdict

        self.show_link(context)
        with translated():
            found = self.hook.validate(self.region, self.groups)
        said: dict[CheckVerdict, list[str]] = {verdict: [] for verdict in CheckVerdict}
        for check in found.checks:
            sentence = f"{check.group}, {check.question}: {check.detail}"
            said[check.verdict].append(sentence)
            self.log.info("%s: %s", check.verdict, sentence)
        if not found.is_all_right:
            bad = [f"{v} {s}" for v in (CheckVerdict.FAILED, CheckVerdict.UNKNOWN) for s in said[v]]
            raise AirflowException(
                f"{len(bad)} check(s) of the groups of region {self.region} did not pass: {'; '.join(bad)}"
            )
        return {"region": self.region, "ok": len(said[CheckVerdict.OK]), "warnings": said[CheckVerdict.WARNING]}


class KcrRetireOperator(RegionTask):
    """Retires all checkpoints that the spec's retention no longer keeps, like `kcr checkpoint retire`."""

    def execute(self, context: Context) -> dict[str, object]:
        """Retire, and return the sequences that are gone."""
        with self.lent(context) as region:
            gone = region.checkpoints.retire()
        self.log.info("Retired %d checkpoint(s) of region %s", len(gone), self.region)
        return {"region": self.region, "retired": list(gone)}


class KcrVerifyOperator(RegionTask):
    """Verifies a region's history against the invariants, like `kcr verify`; the region can keep running.

    A violation fails the task without retries: history does not change.
    """

    def execute(self, context: Context) -> dict[str, object]:
        """Verify, and return how much was checked.

        Raises:
            AirflowFailException: the history contradicts an invariant.
        """
        with self.lent(context) as region:
            verdict = region.verify()
        for violation in verdict.violations:
            self.log.error("%s: %s", violation.invariant, violation.detail)
        if verdict.violations:
            raise AirflowFailException(
                f"the history of region {self.region} has {len(verdict.violations)} violation(s); the first: "
                f"{verdict.violations[0].invariant}: {verdict.violations[0].detail}"
            )
        return verdict.shown.document(verdict, ("region", "checked_events", "checked_batches", "after"))
