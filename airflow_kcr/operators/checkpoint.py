"""Operators of checkpoints: drain gives a run its checkpoint, commit waits until it counts, others keep and mend it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowException

from airflow_kcr.errors import ConfigurationError, GroupNotEmpty, KcrError
from airflow_kcr.goals import CheckpointCommitted, RequestPublished
from airflow_kcr.hooks import kcr
from airflow_kcr.hooks.assets import region_asset
from airflow_kcr.hooks.checkpoints import PublishedCheckpoint
from airflow_kcr.hooks.kcr import translated
from airflow_kcr.operators.base import ONE_HOUR, CheckpointOperator, RegionOperator, WaitingOperator, sequence_of
from airflow_kcr.operators.intervals import require_fit
from airflow_kcr.protocol.values import CheckpointNumber, checked_instant, format_instant, parse_instant
from airflow_kcr.settings import secrets_in
from airflow_kcr.triggers.payloads import TriggerAnswer

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_kcr.api import CheckpointView, Region
    from airflow_kcr.protocol.region.rows import Checkpoint


class KcrDrainOperator(WaitingOperator):
    """Asks for the run's checkpoint, like `kcr region drain`, waits until it is published, and returns which it is.

    The checkpoint is aligned to the end of the run's data interval, so it has exactly the interval's records. With
    `request: auto`, the region has made it already. A run without an interval (manual, or triggered by an asset) gets a
    checkpoint wherever the members are.

    The request is named after the run and the task. A retried or cleared task finds its checkpoint again, unless a
    reset has undone it or it was aborted.

    Args:
        until: the boundary instead of the interval's end (templated), an instant with a zone. It is not compared with
            the region's schedule.
        allow_inexact: checkpoint even where a partition is past the boundary; the result has `inexact`.
        kwargs: as for every operator that waits; `region`, `kcr_conn_id`, `timeout` and `deferrable` among them.
    """

    template_fields = (*WaitingOperator.template_fields, "until")

    def __init__(self, *, until: datetime | str | None = None, allow_inexact: bool = False, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(**kwargs)
        self.until = until
        self.allow_inexact = allow_inexact

    def ask(self, context: Context, region: Region) -> RequestPublished:
        """Ask for the checkpoint, under the name of run and task.

        Raises:
            ConfigurationError: the run's data interval is of no length, or does not fit the region's schedule; `until`
                is no instant.
            RegionInState, CheckpointRefused: the region can't be checkpointed as asked.
        """
        asked = region.request_checkpoint(
            self._boundary(context, region),
            request_id=kcr.request_id(context),
            allow_inexact=self.allow_inexact,
        )
        return RequestPublished(request_id=asked.request_id)

    def resume(
        self,
        context: Context,
        event: Mapping[str, object],
        waiting_for: Mapping[str, Any] | None = None,
        asked_at: str = "",
    ) -> dict[str, Any]:
        """Go on after the trigger, with one read of the region.

        A checkpoint that a reset has undone meanwhile is asked for again, under the same name.
        """
        with translated():
            TriggerAnswer.from_json(event).require_reached()
        with self.lent(context) as region:
            row, previous = region.answered(kcr.request_id(context))
        if row is None or row.published_at is None or not row.is_current:
            return self.execute(context)
        return self._returned(context, row, previous)

    def answer(self, context: Context, region: Region) -> dict[str, Any]:
        """Return the checkpoint: region, timeline, sequence, boundary and whether it is inexact."""
        request_id = kcr.request_id(context)
        row, previous = region.answered(request_id)
        if row is None:
            raise ConfigurationError(f"the checkpoint of request id {request_id} is gone; was the region deleted?")
        return self._returned(context, row, previous)

    def _returned(self, context: Context, row: Checkpoint, previous: Checkpoint | None) -> dict[str, Any]:
        for remark in self._remarks(context, row, previous):
            self.log.warning("%s", remark)
        self.log.info("Checkpoint %d of region %s, timeline %d, is published", row.sequence, self.region, row.timeline)
        return _document(self.region, row)

    def _boundary(self, context: Context, region: Region) -> datetime | None:
        if isinstance(self.until, datetime):
            return checked_instant(self.until)
        if self.until is not None:
            return parse_instant(str(self.until))
        interval = kcr.interval_of(context)
        if interval is None:
            return None
        start, end = (checked_instant(moment) for moment in interval)
        require_fit(region.spec(), start, end)
        return end

    def _remarks(self, context: Context, row: Checkpoint, previous: Checkpoint | None) -> list[str]:
        """Return how the checkpoint's records differ from the interval's, in sentences; none: they are the same."""
        found = [f"{partition}: {why}" for partition, why in sorted(row.inexact.items())]
        interval = None if self.until is not None else kcr.interval_of(context)
        if interval is None:
            return found
        start, end = (checked_instant(moment) for moment in interval)
        if row.boundary is not None and row.boundary > end:
            found.append(
                f"no checkpoint was made at {format_instant(end)}, the end of the run's interval: the first one "
                "beyond it, of "
                f"{format_instant(row.boundary)}, answers, and holds the records of all intervals up to there"
            )
        if previous is None:
            found.append(f"it is the region's first checkpoint: it holds all records before {format_instant(end)}")
        elif previous.boundary is None:
            found.append(
                f"checkpoint {previous.sequence} before it has no boundary: the interval's records up to there are in "
                "that one"
            )
        elif previous.boundary < start:
            found.append(
                f"no checkpoint was made at {format_instant(start)}, the begin of the run's interval: this one holds "
                "the "
                f"records since {format_instant(previous.boundary)}"
            )
        return found


class KcrCommitCheckpointOperator(WaitingOperator):
    """Waits until a checkpoint is published and it is known whether Kafka holds its offsets; then emits its event.

    It also succeeds if a later checkpoint has taken its place. If Kafka has other offsets and the groups are empty, it
    commits the offsets itself; with members in the groups the task fails, and a retry succeeds once the members have
    committed, at the latest with the next checkpoint.

    The event is one of the asset `kcr://REGION`, an outlet of the task, with the partition key `TIMELINE.SEQUENCE`. A
    DAG with `schedule=PartitionedAssetTimetable(assets=region_asset(REGION))` runs once for each; `checkpoint_of` reads
    it there. If one checkpoint answers several runs, only the run that requested first emits its event. If the region's
    name is a template, Airflow draws no line from this DAG to those that it starts.

    Args:
        checkpoint: which one (templated): its sequence, or what `KcrDrainOperator` has returned; None: the one that
            answered this run's requests.
        kwargs: as for every operator that waits; `region`, `kcr_conn_id`, `timeout` and `deferrable` among them.

    Raises:
        InvalidIdentifier: the region's name is none.
    """

    template_fields = (*WaitingOperator.template_fields, "checkpoint")

    def __init__(
        self,
        *,
        region: str,
        checkpoint: Mapping[str, Any] | int | str | None = None,
        outlets: Any = None,  # noqa: ANN401 (Airflow's own)
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        own = [region_asset(region)] if _is_known(region) else []
        given = [] if outlets is None else list(outlets) if isinstance(outlets, list | tuple) else [outlets]
        super().__init__(region=region, outlets=[*given, *own], **kwargs)
        self.checkpoint = checkpoint

    def ask(self, context: Context, region: Region) -> CheckpointCommitted:
        """Return which checkpoint to wait for; nothing is asked of the region.

        Raises:
            ConfigurationError: `checkpoint` is none of this region.
            UnknownCheckpoint, CheckpointNotUsable: this run has none, or several.
        """
        return CheckpointCommitted(sequence=CheckpointNumber(sequence_of(self.checkpoint, context, region)))

    def answer(self, context: Context, region: Region) -> dict[str, Any]:
        """Repair Kafka's side if that is needed, emit the event, and return the checkpoint as the drain does."""
        from airflow_kcr.protocol.region.rows import Committed

        view = region.checkpoints.show(sequence_of(self.checkpoint, context, region))
        if view.checkpoint.committed is Committed.NO:
            view = self._repaired(region, view)
        row = view.checkpoint
        self.log.info(
            "Checkpoint %d of region %s is published; committed: %s", row.sequence, self.region, row.committed
        )
        if row.committed is Committed.SUPERSEDED:
            self.log.info("Kafka holds, or is being told, the offsets of a later checkpoint or of a reset")
        self._emit(context, region.region_id(), view)
        return _document(self.region, row)

    def _repaired(self, region: Region, view: CheckpointView) -> CheckpointView:
        """Return the checkpoint after committing its offsets to Kafka from here, if it is the restore point."""
        row = view.checkpoint
        if region.show().restore_point != row.sequence:
            self.log.info("Kafka was never told of checkpoint %d; it is not the restore point any more", row.sequence)
            return view
        self.log.warning("Kafka does not hold checkpoint %d, the restore point; telling it from here", row.sequence)
        try:
            return region.checkpoints.repair(row.sequence)
        except GroupNotEmpty as error:
            # No refusal for good: members are there, and it is they who commit.
            raise KcrError(
                f"Kafka does not hold checkpoint {row.sequence} of region {self.region}, and can't be told from "
                f"outside: {error.message}. Its members commit by themselves, at the latest with the next checkpoint"
            ) from error

    def _emit(self, context: Context, region_id: str, view: CheckpointView) -> None:
        row, asset = view.checkpoint, region_asset(self.region)
        published = PublishedCheckpoint(
            region=self.region,
            region_id=region_id,
            timeline=int(row.timeline),
            sequence=int(row.sequence),
            boundary=None if row.boundary is None else format_instant(row.boundary),
            digest=row.digest,
        )
        # The author's outlets, and at most this one. Airflow emits an event of each when the task has succeeded, and
        # asks for them only then: the asset of a name that was a template is among them too.
        self.outlets = [one for one in self.outlets if one != asset]
        first, asked = next(iter(view.runs), None), kcr.requester(context)
        runs = {(one.dag_id, one.run_id) for one in view.runs}
        if first is not None and (asked.dag_id, asked.run_id) in runs - {(first.dag_id, first.run_id)}:
            self.log.info("Its event is that of run %s of DAG %s, which asked first", first.run_id, first.dag_id)
            return
        self.outlets = [*self.outlets, asset]
        event = context["outlet_events"][asset]
        event.extra = dict(published.to_json())
        event.add_partitions(published.partition_key)


def _document(region: str, row: Checkpoint) -> dict[str, Any]:
    """What drain and commit return of a checkpoint."""
    return {
        "region": region,
        "timeline": int(row.timeline),
        "sequence": int(row.sequence),
        "boundary": None if row.boundary is None else format_instant(row.boundary),
        "inexact": bool(row.inexact),
    }


def _is_known(region: object) -> bool:
    """Whether a region's name is one, and no template that becomes one."""
    return isinstance(region, str) and "{" not in region


class KcrPinCheckpointOperator(CheckpointOperator):
    """Pins a checkpoint, as `kcr checkpoint pin` does: it is not retired until it is unpinned.

    Args:
        checkpoint: which one (templated): its sequence, or what `KcrDrainOperator` has returned; None: the one that
            answered this run's requests.
        pinned_as: a short label (templated).
        reason: why it is kept (templated).
        kwargs: as for every operator; `region` and `kcr_conn_id` among them.
    """

    template_fields = (*CheckpointOperator.template_fields, "pinned_as", "reason")

    def __init__(self, *, pinned_as: str = "pinned", reason: str = "", **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(**kwargs)
        self.pinned_as = pinned_as
        self.reason = reason

    def work(self, region: Region, sequence: int) -> dict[str, object]:
        """Pin it, and return its sequence and label."""
        row = region.checkpoints.pin(sequence, self.pinned_as, self.reason).checkpoint
        return {"region": region.name, "sequence": int(row.sequence), "pinned_as": row.pinned_as}


class KcrUnpinCheckpointOperator(CheckpointOperator):
    """Unpins a checkpoint, as `kcr checkpoint unpin` does: the region's retention counts for it again.

    Args:
        checkpoint: which one (templated): its sequence, or what `KcrDrainOperator` has returned; None: the one that
            answered this run's requests.
        kwargs: as for every operator; `region` and `kcr_conn_id` among them.
    """

    def work(self, region: Region, sequence: int) -> dict[str, object]:
        """Unpin it, and return its sequence."""
        row = region.checkpoints.unpin(sequence).checkpoint
        return {"region": region.name, "sequence": int(row.sequence), "pinned_as": row.pinned_as}


class KcrCompareCheckpointOperator(CheckpointOperator):
    """Compares a checkpoint with what Kafka has, as `kcr checkpoint compare` does; changes nothing.

    It fails for no finding: a task after it decides by what it returns.

    Args:
        checkpoint: which one (templated): its sequence, or what `KcrDrainOperator` has returned; None: the one that
            answered this run's requests.
        kwargs: as for every operator; `region` and `kcr_conn_id` among them.
    """

    def work(self, region: Region, sequence: int) -> dict[str, object]:
        """Compare it, and return how many partitions have which finding; the log names those that are not equal."""
        found = region.checkpoints.compare(sequence)
        for one in found:
            if one.finding != "equal":
                self.log.info("%s: %s: offset %d, committed %s", one.partition, one.finding, one.offset, one.committed)
        counts = Counter(str(one.finding) for one in found)
        return {"region": region.name, "sequence": sequence, "partitions": len(found), "findings": dict(counts)}


class KcrRepairCheckpointOperator(CheckpointOperator):
    """Tells Kafka the restore point's offsets again, as `kcr checkpoint repair` does.

    It is refused for any other checkpoint, and while a group has members: those commit by themselves.

    Args:
        checkpoint: which one (templated): its sequence, or what `KcrDrainOperator` has returned; None: the one that
            answered this run's requests.
        kwargs: as for every operator; `region` and `kcr_conn_id` among them.
    """

    def work(self, region: Region, sequence: int) -> dict[str, object]:
        """Repair it, and return whether Kafka has it now."""
        row = region.checkpoints.repair(sequence).checkpoint
        return {"region": region.name, "sequence": int(row.sequence), "committed": str(row.committed)}


class KcrCleanCheckpointsOperator(RegionOperator):
    """Deletes the output of file sinks that no checkpoint needs, as `kcr checkpoint clean` does.

    It runs that command on the worker, with Spark for its file systems. Members can keep running. If the task was
    killed half-way, run it again.

    Args:
        retired: whether to delete the output of retired checkpoints too, for ever.
        conf: settings of Spark, as for members (templated). A secret in them is refused.
        timeout: how long it may take; the next try continues where it was.
        kwargs: as for every operator; `region` and `kcr_conn_id` among them.

    Raises:
        ConfigurationError: `conf` holds a secret.
    """

    template_fields = (*RegionOperator.template_fields, "conf")

    def __init__(
        self,
        *,
        retired: bool = False,
        conf: Mapping[str, str] | None = None,
        timeout: timedelta = ONE_HOUR,
        **kwargs: Any,  # noqa: ANN401 (Airflow's own)
    ) -> None:
        super().__init__(**kwargs)
        self.retired = retired
        self.timeout = timeout
        self.conf = conf
        self._child: subprocess.Popen[str] | None = None
        self._refuse_secrets()

    def execute(self, context: Context) -> dict[str, object]:
        """Clean, and return what was deleted, by sink.

        Raises:
            AirflowException: the command failed; the log has its own words.
        """
        self._refuse_secrets()  # again, now that templates are rendered
        with self.lent(context) as region:
            environment = self.hook.environment(region.spec())
        arguments = ["checkpoint", "clean", self.region, "-o", "json", *(["--retired"] if self.retired else [])]
        arguments += [part for name, value in (self.conf or {}).items() for part in ("--conf", f"{name}={value}")]
        # In a session of its own, so that it is ended with the Spark that it has started.
        with subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-m", "airflow_kcr", *arguments],
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as self._child:
            try:
                answer, said = self._child.communicate(timeout=self.timeout.total_seconds())
            except subprocess.TimeoutExpired:
                raise AirflowException(
                    f"cleaning region {self.region} was not done within {self.timeout}; the next try goes on"
                ) from None
            finally:
                self.on_kill()
        for line in said.splitlines():
            self.log.info("%s", line)
        if self._child.returncode:
            last = said.strip().splitlines()[-1:] or ["it said nothing"]
            raise AirflowException(
                f"`kcr checkpoint clean {self.region}` ended with status {self._child.returncode}: {last[0]}"
            )
        found: dict[str, object] = json.loads(answer)
        return found

    def on_kill(self) -> None:
        """End the command, and the Spark that it has started."""
        if self._child is not None and self._child.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)

    def _refuse_secrets(self) -> None:
        if seen := secrets_in(self.conf or {}):
            raise ConfigurationError(
                f"{', '.join(seen)} hold what may be a secret; every user of the machine could read it in the command "
                "line: write it into Spark's own files (spark-defaults.conf), or into the worker's environment"
            )
