"""Operators that declare and steer a region: apply, pause, resume, stop, retire, close its history, validate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.hooks.contexts import translated
from airflow_kcr.hooks.links import RegionLink
from airflow_kcr.operators.base import RegionOperator, WaitingOperator
from airflow_kcr.triggers.payloads import Reaching, RegionReaches

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_kcr.api import Region
    from airflow_kcr.spec import RegionSpec


class KcrApplyRegionOperator(RegionOperator):
    """Creates the region of a spec, stopped, or changes it; the same spec again changes nothing.

    The spec is read and checked when the DAG file is parsed: what is wrong in it is a DAG import error that names the
    fields. Nothing of it is templated.

    Args:
        spec: a `RegionSpec`; a mapping of the same fields; the absolute path of a YAML file; or YAML, which has more
            than one line.
        start: whether a region that is stopped or halted is started afterwards, and one that is paused goes on. Members
            start a stopped region by themselves.
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
        """Apply the spec, and return what was done, as `kcr region apply` shows it.

        Raises:
            SpecRefused: members that live can't run under it; the region keeps the spec that it has.
        """
        from airflow_kcr.api import goals

        with self.lent(context) as region:
            applied = region.apply(self.spec)
            for difference in applied.differences:
                self.log.info("%s counts %s", difference.path, difference.takes_effect)
            region.wait_for(goals.SPEC_CHECKED)
            if self.start:
                region.start()
        self.log.info("Region %s is %s", applied.region, applied.change)
        return applied.to_json()


def read_spec(spec: RegionSpec | Mapping[str, object] | str | Path) -> RegionSpec:
    """Return the spec that somebody has written in one of the ways that `KcrApplyRegionOperator` takes.

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


# Pauses a region.


class KcrPauseOperator(WaitingOperator):
    """Pauses a region and waits until no batch of it runs any more; the members stay in their groups.

    A checkpoint that approaches its boundary is given up. A region that is paused already stays so.
    """

    def ask(self, context: Context, region: Region) -> RegionReaches:
        """Ask the region to pause."""
        region.pause()
        return RegionReaches(state=Reaching.PAUSED)

    def answer(self, context: Context, region: Region) -> dict[str, Any]:
        """Return the region's state."""
        view = region.show()
        return {"region": view.region, "state": view.state, "desired_state": view.desired_state, "epoch": view.epoch}


# Lets a region go on.


class KcrResumeOperator(RegionOperator):
    """Lets a paused region go on; a stopped or halted one is started.

    Does not wait: a started region runs once its members are there, whom another task may have to start. What needs it
    to run waits with `KcrRegionStateSensor`.
    """

    def execute(self, context: Context) -> dict[str, object]:
        """Resume, and return the region's state."""
        with self.lent(context) as region:
            view = region.resume()
        return {"region": view.region, "state": view.state, "desired_state": view.desired_state, "epoch": view.epoch}


# Stops a region with a checkpoint.


class KcrStopOperator(WaitingOperator):
    """Stops a region and waits until its members have left.

    A checkpoint, published and committed to Kafka, then all leave.

    Nothing is processed twice by a stop and a later start. A region without a live member, or one that is halted, is
    stopped at once, undrained. A region that is stopped already stays so.
    """

    def ask(self, context: Context, region: Region) -> RegionReaches:
        """Ask the region to stop."""
        region.stop()
        return RegionReaches(state=Reaching.STOPPED)

    def answer(self, context: Context, region: Region) -> dict[str, Any]:
        """Return the region's state and its newest checkpoint."""
        view = region.show()
        return {"region": view.region, "state": view.state, "timeline": view.timeline, "sequence": view.last_complete}


# Checks a region's groups before something is asked of them.


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
        from airflow_kcr.protocol.evidence import CheckVerdict

        RegionLink().persist(context, self.region, self.kcr_conn_id)
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


# Forgets the checkpoints that are old enough to go.


class KcrRetireOperator(RegionOperator):
    """Forgets the checkpoints that the region's retention gives up, as `kcr checkpoint retire` does.

    A running region does so by itself, a piece with each decision. A task of this kind forgets all that is due, now,
    also of a region that does not run.
    """

    def execute(self, context: Context) -> dict[str, object]:
        """Retire, and return the sequences that are gone."""
        with self.lent(context) as region:
            gone = region.retire()
        self.log.info("Retired %d checkpoint(s) of region %s", len(gone), self.region)
        return {"region": self.region, "retired": list(gone)}


# Archives and drops the history that is old enough.


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
