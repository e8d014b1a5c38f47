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

from airflow.providers.common.compat.sdk import AirflowException

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.goals import CheckpointCommitted, RequestPublished
from airflow_kcr.hooks import kcr
from airflow_kcr.hooks.kcr import RegionTask
from airflow_kcr.operators.base import ONE_HOUR, CheckpointOperator, WaitingOperator, sequence_of
from airflow_kcr.operators.events import document, outlets_of, settled
from airflow_kcr.operators.intervals import boundary_of, remarks
from airflow_kcr.protocol.values import CheckpointNumber
from airflow_kcr.settings import secrets_in

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_kcr.api import Region
    from airflow_kcr.protocol.region.rows import Checkpoint


class KcrDrainOperator(WaitingOperator):
    """Requests the run's checkpoint, like `kcr region drain`, waits until it is published, and returns it.

    It is aligned to the end of the run's data interval, so it has exactly the interval's records. With `request: auto`,
    the region has made it already. A run without an interval (manual, or triggered by an asset) gets a checkpoint
    wherever the members are. A retried or cleared task finds its checkpoint again, unless a reset has undone it or it
    was aborted.

    Args:
        until: the boundary instead of the interval's end (templated), an instant with a zone. It need not be one of the
            region's schedule.
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
            boundary_of(context, region.spec(), self.until),
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
        self.require_reached(event)
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
        for remark in remarks(None if self.until is not None else kcr.interval_of(context), row, previous):
            self.log.warning("%s", remark)
        self.log.info("Checkpoint %d of region %s, timeline %d, is published", row.sequence, self.region, row.timeline)
        return document(self.region, row)


class KcrCommitCheckpointOperator(WaitingOperator):
    """Waits until a checkpoint is published and it is known whether Kafka holds its offsets; then emits its event.

    It also succeeds if a later checkpoint has taken its place. If Kafka has other offsets and the groups are empty, it
    commits the offsets itself; with members in the groups it fails, and a retry succeeds once the members have
    committed, at the latest with the next checkpoint.

    The event is one of the asset `kcr://REGION`, an outlet of the task, with the partition key `TIMELINE.SEQUENCE`
    ([what runs downstream](../how-to/line-checkpoints-up-with-dag-runs.md)). If one checkpoint answers several runs,
    only the first requester emits it. If the region's name is a template, Airflow draws no line to the DAGs that it
    starts.

    Args:
        checkpoint: which one (templated): its sequence, or the result of a `KcrDrainOperator`; None: the one that
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
        super().__init__(region=region, outlets=outlets_of(region, outlets), **kwargs)
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
        return settled(self, context, region, sequence_of(self.checkpoint, context, region))


class KcrPinCheckpointOperator(CheckpointOperator):
    """Pins a checkpoint, like `kcr checkpoint pin`: it is not retired until it is unpinned.

    Args:
        checkpoint: which one (templated): its sequence, or the result of a `KcrDrainOperator`; None: the one that
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
    """Unpins a checkpoint, like `kcr checkpoint unpin`.

    Args:
        checkpoint: which one (templated): its sequence, or the result of a `KcrDrainOperator`; None: the one that
            answered this run's requests.
        kwargs: as for every operator; `region` and `kcr_conn_id` among them.
    """

    def work(self, region: Region, sequence: int) -> dict[str, object]:
        """Unpin it, and return its sequence."""
        row = region.checkpoints.unpin(sequence).checkpoint
        return {"region": region.name, "sequence": int(row.sequence), "pinned_as": row.pinned_as}


class KcrCompareCheckpointOperator(CheckpointOperator):
    """Compares a checkpoint with Kafka, like `kcr checkpoint compare`, and returns the findings; none fails the task.

    Args:
        checkpoint: which one (templated): its sequence, or the result of a `KcrDrainOperator`; None: the one that
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
    """Commits the restore point's offsets to Kafka again, like `kcr checkpoint repair`.

    Args:
        checkpoint: which one (templated): its sequence, or the result of a `KcrDrainOperator`; None: the one that
            answered this run's requests.
        kwargs: as for every operator; `region` and `kcr_conn_id` among them.
    """

    def work(self, region: Region, sequence: int) -> dict[str, object]:
        """Repair it, and return whether Kafka has it now."""
        row = region.checkpoints.repair(sequence).checkpoint
        return {"region": region.name, "sequence": int(row.sequence), "committed": str(row.committed)}


class KcrCleanCheckpointsOperator(RegionTask):
    """Deletes the output of file sinks that no checkpoint needs, like `kcr checkpoint clean`.

    It runs on the worker, with Spark for its file systems, while members may run. A retry continues where it was.

    Args:
        retired: whether to delete the output of retired checkpoints too, permanently.
        conf: settings of Spark, as for members (templated). A secret in them is refused.
        timeout: how long it may take.
        kwargs: as for every operator; `region` and `kcr_conn_id` among them.

    Raises:
        ConfigurationError: `conf` holds a secret.
    """

    template_fields = (*RegionTask.template_fields, "conf")

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
