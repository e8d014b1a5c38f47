"""Where partitions begin: what a claim proposes, and how the open entries of a reset are answered.

Both read the logs first; the protocol's own rules then say which offset that means.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta

from airflow_kcr.errors import UnknownTopics
from airflow_kcr.ports import CommittedOffset, Logs, Membership
from airflow_kcr.protocol.observations import LogBounds, LogView, TimeAnswer
from airflow_kcr.protocol.offsets import EMPTY, OffsetMap, SeekEntry, SeekSource
from airflow_kcr.protocol.region.commands import AssignedPartition, Found
from airflow_kcr.protocol.rules import COMMITTED, EARLIEST, GroupRules
from airflow_kcr.protocol.targets import Situation, Target
from airflow_kcr.protocol.values import ClusterId, GroupPartition, few
from airflow_kcr.runtime.leases import StoreClock

COMMITTED_TIMEOUT = timedelta(seconds=5)
"""How long Kafka's committed offsets are waited for."""


def bounds_and_times(
    logs: Logs, partitions: Collection[GroupPartition], instant: datetime | None
) -> tuple[dict[GroupPartition, LogBounds], Mapping[GroupPartition, TimeAnswer]]:
    """Return logs and their first records at or after an instant, of which each found one is within its log.

    The logs are read first: where there is no such record, what has come since lies behind the end. A record that came
    in between lies there too, and is in the log when that is read again. A log that isn't there is absent.

    Args:
        logs: a cluster's.
        partitions: of which of them.
        instant: None: no record is looked up.

    Raises:
        BrokerUnavailable, CredentialsRefused: the brokers don't answer, or refuse.
    """
    bounds = dict(logs.bounds(partitions))
    answers = {} if instant is None else logs.first_at_or_after(dict.fromkeys(bounds, instant))
    grown = [p for p, answer in answers.items() if answer.offset is not None and answer.offset > bounds[p].end]
    return bounds | (logs.bounds(grown) if grown else {}), answers


class Places:
    """Reads what claims and resets need; used by one thread.

    Args:
        logs: the cluster's.
        membership: for Kafka's committed offsets of the group.
        group: the group's rules.
        store_clock: durations count back from it.
    """

    def __init__(self, logs: Logs, membership: Membership, group: GroupRules, store_clock: StoreClock) -> None:
        self._logs, self._membership, self._group, self._store_clock = logs, membership, group, store_clock

    def assigned(
        self, partitions: frozenset[GroupPartition], *, initialised: bool
    ) -> dict[GroupPartition, AssignedPartition]:
        """Return what a claim of these partitions proposes.

        Args:
            partitions: the whole assignment.
            initialised: whether the region's start positions are resolved, so that a new partition was found later.

        Raises:
            BrokerUnavailable, CredentialsRefused: the brokers don't answer, or refuse.
            UnknownTopics: the cluster does not have one of the logs any more, or not yet.
        """
        if not partitions:
            return {}
        # Records are written between a partition's creation and its discovery: found later, it begins at its start.
        start, read_at = EARLIEST if initialised else self._group.start, self._store_clock.now()
        view = self._view(partitions, read_at, instant=start.time_needed(read_at), committed=start == COMMITTED)
        return {p: AssignedPartition(bounds=view.bounds[p], initial=start.entry(p, view)) for p in sorted(partitions)}

    def found(self, open_: Mapping[GroupPartition, SeekEntry], target: Target | None) -> dict[GroupPartition, Found]:
        """Return the answers to the open entries that the logs can give: those of a person's target, and new starts.

        Args:
            open_: the entries, none of a sink's progress.
            target: what a person asked for.

        Raises:
            BrokerUnavailable, CredentialsRefused: the brokers don't answer, or refuse.
            UnknownTopics: the cluster does not have one of the logs.
        """
        asked = {p for p, entry in open_.items() if entry.source is SeekSource.EXPLICIT and target is not None}
        found = {
            p: Found(offset=a.initial.offset, log=a.bounds)
            for p, a in self.assigned(frozenset(open_.keys() - asked), initialised=False).items()
            if a.initial
        }
        if target is None or not asked:
            return found
        read_at = self._store_clock.now()
        view = self._view(asked, read_at, instant=target.time_needed(read_at), committed=False)
        for partition in sorted(asked):
            fallback = open_[partition].current
            current = EMPTY if fallback is None else OffsetMap({partition: fallback})
            situation = Situation(partitions=[partition], current=current, initial=EMPTY, log=view)
            entry, log = target.entry(partition, situation), view.bounds[partition]
            found[partition] = (
                Found(offset=None, log=log)
                if entry is None
                else Found(offset=entry.offset, clamped_from=entry.clamped_from, log=log)
            )
        return found

    def cluster(self) -> ClusterId:
        """Return which cluster the logs are of, asked now.

        Raises:
            BrokerUnavailable, CredentialsRefused: the brokers don't answer, or refuse.
        """
        return self._logs.cluster_id()

    def subscribed(self) -> frozenset[GroupPartition]:
        """Return every partition that the brokers have of what the group subscribes to.

        Raises:
            BrokerUnavailable, CredentialsRefused: the brokers don't answer, or refuse.
        """
        return self._group.partitions(self._logs.topics(self._group.topics))

    def committed(self, partitions: frozenset[GroupPartition]) -> Mapping[GroupPartition, CommittedOffset]:
        """Return Kafka's committed offsets of the group.

        Raises:
            BrokerUnavailable: there was no answer in time.
        """
        return self._membership.committed(partitions, COMMITTED_TIMEOUT) if partitions else {}

    def _view(
        self, partitions: Collection[GroupPartition], read_at: datetime, *, instant: datetime | None, committed: bool
    ) -> LogView:
        # What was committed was in the log before, and the log only grows.
        held = self.committed(frozenset(partitions)) if committed else {}
        bounds, answers = bounds_and_times(self._logs, partitions, instant)
        gone = sorted({str(p.topic_partition) for p in partitions} - {str(p.topic_partition) for p in bounds})
        if gone:
            raise UnknownTopics(f"the cluster has no log {few(gone)}; was its topic deleted?")
        return LogView(
            bounds=bounds,
            committed={p: row.offset for p, row in held.items()},
            answers=answers,
            read_at=read_at,
        )
