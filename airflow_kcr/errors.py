"""Every error of this project, in one tree.

::

    KcrError
    ├── ConfigurationError          what the user wrote can't work (exit status 2)
    │   ├── SpecError               a region spec with findings, all at once, each with its path
    │   ├── InvalidIdentifier       a name that Kafka or Postgres would mangle
    │   ├── InvalidTarget           a reset target or scope that means nothing here
    │   ├── InvalidOffsetsFile      a reset CSV that can't be read; nothing of it is used
    │   ├── UnknownTopics           topics are listed that do not exist
    │   ├── PipelineUnusable        the pipeline does not import, or can't be called as a pipeline
    │   ├── CredentialsRefused      Kafka does not let the client in, or not do what it needs
    │   └── ToolMissing             a program that is needed is not installed
    ├── RefusedError                the request is sound, the region's state forbids it (exit status 3)
    │   ├── UnknownRegion, RegionExists, RegionInState
    │   ├── GroupInOtherRegion, OtherCluster, UnknownMember, MemberInUse, SpecOutdated, SpecRefused
    │   ├── UnknownCheckpoint, CheckpointNotUsable, CheckpointRefused, UnknownReset
    │   ├── StalePlan, ResetInProgress, UpsertNeedsConsent
    │   ├── GroupNotEmpty, ForeignConsumerInGroup
    │   └── FencedError
    │       ├── StaleEpoch, StaleIncarnation, LeaseExpired, NotClaimed
    │       └── BatchRefused
    ├── ProtocolError               a part of the system broke a rule; never the user's fault
    │   ├── IllegalEvent, OffsetOutsideLog, OverlappingOffsets, ConflictingContribution, StrangeContribution
    │   └── NumberOutOfRange
    ├── BatchError                  a batch did not do its work
    │   └── BatchCancelled, BatchFailed
    ├── ResetFailed                 a person's reset was accepted, and could not be carried out
    ├── SinkError                   a sink could not do its part
    │   ├── SinkAhead
    │   ├── SinkUnavailable         its database can't be reached
    │   └── SinkRefused             its server refuses the login, or has no such database (exit status 2)
    ├── ServiceFailed               an embedded service did not start, or a download failed
    ├── TimedOut                    what was waited for did not happen in time (exit status 5)
    ├── BrokerUnavailable           Kafka can't be reached, or did not answer in time (exit status 4)
    └── StoreError                  the store can't serve (exit status 4)
        ├── StoreUnavailable
        │   └── StoreRefused        its server refuses the login, or has no such database: a matter of its address
        ├── StoreBusy
        ├── OutcomeUnknown          the COMMIT's answer was lost; read before repeating
        ├── SchemaTooOld, SchemaTooNew, SchemaMissing
        └── StoreRestored           the store is older than what a member has already seen

A class whose message is always the same carries it as its docstring; the others are raised with a sentence that says
what was wrong, where, and what to do.
"""

from __future__ import annotations


class KcrError(Exception):
    """airflow_kcr failed."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())

    @property
    def message(self) -> str:
        """The sentence for the reader."""
        return str(self.args[0])


class ConfigurationError(KcrError):
    """The configuration can't work as written."""


class SpecError(ConfigurationError):
    """The region spec has contradictions; `findings` lists them all as (path, what is wrong and what to do)."""

    def __init__(self, findings: tuple[tuple[str, str], ...]) -> None:
        self.findings = findings
        lines = "\n".join(f"  {path}: {text}" for path, text in findings)
        super().__init__(f"the region spec can't be used, {len(findings)} finding(s):\n{lines}")


class InvalidIdentifier(ConfigurationError):
    """A name contains characters that Kafka or Postgres would mangle."""


class InvalidTarget(ConfigurationError):
    """The reset target or its scope means nothing for this region."""


class InvalidOffsetsFile(ConfigurationError):
    """The offsets file can't be read; nothing of it was used."""


class UnknownTopics(ConfigurationError):
    """The spec lists topics that don't exist; the message names each with its group."""


class PipelineUnusable(ConfigurationError):
    """The pipeline does not import, or can't be called with a batch and its context; nothing was consumed."""


class CredentialsRefused(ConfigurationError):
    """Kafka refused the client's credentials, or lacks a right that it needs; the message names which."""


class ToolMissing(ConfigurationError):
    """A program that is needed is not installed; the message says what to install."""


class RefusedError(KcrError):
    """The request is sound, but the region's present state forbids it."""


class UnknownRegion(RefusedError):
    """There is no region of that name in this store."""


class RegionExists(RefusedError):
    """A region of that name exists already with another definition."""


class RegionInState(RefusedError):
    """The region's state does not allow this verb; the message says which states do."""


class RegionBeingDeleted(RegionInState):
    """The region is being deleted, or its deletion was interrupted; delete it again to continue."""


class GroupInOtherRegion(RefusedError):
    """The consumer group belongs to another region of this store; one group of one cluster is in exactly one region."""


class OtherCluster(RefusedError):
    """A group's address leads to another Kafka cluster than the one that the region has consumed from."""


class UnknownMember(RefusedError):
    """The region's spec has no such group, or no such index in it."""


class MemberInUse(RefusedError):
    """Another live process holds this member's index; stop it, or ask for a takeover."""


class PartitionBusy(RefusedError):
    """A batch of the partition's owner still runs there; the claim is made again until that is over."""


class SpecRefused(RefusedError):
    """Members can't start with a changed spec."""


class SpecOutdated(RefusedError):
    """The member was built from a spec that is not in force any more; it has to be built again."""


class UnknownCheckpoint(RefusedError):
    """The region has no checkpoint of that sequence."""


class CheckpointNotUsable(RefusedError):
    """The checkpoint can't be a target as it is; the message says why, and which option would allow it."""


class CheckpointRefused(RefusedError):
    """The checkpoint can't be made as asked; the message says why."""


class UnknownReset(RefusedError):
    """The region has no reset of that id, sequence or plan."""


class StalePlan(RefusedError):
    """The plan was made under another epoch; plan again and check what has changed."""


class ResetNotApproved(RefusedError):
    """The store has no approval of exactly this plan; a person has to approve it."""


class ResetInProgress(RefusedError):
    """Another reset of this region is running; the message names it."""


class RecomputationRefused(RefusedError):
    """A checkpoint is being recomputed by another process, or another one has taken this one's place."""


class UpsertNeedsConsent(RefusedError):
    """A sink of this region keeps no history; a rewind needs the explicit consent that the message names."""


class GroupNotEmpty(RefusedError):
    """The consumer group has members, so its offsets can't be altered from outside."""


class ForeignConsumerInGroup(RefusedError):
    """A foreign consumer is in a group of the region; the message names it with its host and client id."""


class FencedError(RefusedError):
    """The caller may not do this, or no longer."""


class StaleEpoch(FencedError):
    """The region has moved to a newer epoch; what was started under the older one is void."""


class StaleIncarnation(FencedError):
    """A newer incarnation of this member exists; this one must stop and write nothing."""


class LeaseExpired(FencedError):
    """The member's lease is over; it must discard its work and return as a new incarnation."""


class NotClaimed(FencedError):
    """The member holds no current claim on a partition that it wants to process, contribute or commit."""


class BatchRefused(FencedError):
    """The batch may not start or finish; the message names the rule that forbids it."""


class ProtocolError(KcrError):
    """A part of the system broke a rule of the protocol."""


class IllegalEvent(ProtocolError):
    """An event that can't happen in this state; the state is unchanged."""


class OffsetOutsideLog(ProtocolError):
    """An offset lies outside of the log as it was read with it."""


class OverlappingOffsets(ProtocolError):
    """Two offset maps that must not share a partition do."""


class ConflictingContribution(ProtocolError):
    """A contribution disagrees with the store's own positions, or with the member's earlier contribution."""


class StrangeContribution(ProtocolError):
    """A contribution from a member that is not among the checkpoint's participants."""


class NumberOutOfRange(ProtocolError):
    """A number is negative or larger than the store can hold."""


class BatchError(KcrError):
    """A batch did not do its work; when this is raised, nothing of it runs any more."""


class BatchCancelled(BatchError):
    """The batch was cancelled."""


class BatchFailed(BatchError):
    """The pipeline raised, a task failed for good, or the batch processed nothing; the message says which."""


class ResetFailed(KcrError):
    """A person's reset was accepted and could not be carried out; the message says why."""


class SinkError(KcrError):
    """A sink could not do its part of a reset, a checkpoint or a publication."""


class SinkAhead(SinkError):
    """A sink has seen a later epoch or timeline than the region's; `fence` and `timeline` say where it stands."""

    def __init__(self, message: str, *, fence: int, timeline: int) -> None:
        self.fence, self.timeline = fence, timeline
        super().__init__(message)


class SinkUnavailable(SinkError):
    """The database of a sink can't be reached; nothing was changed, and it may come back."""


class SinkRefused(SinkError):
    """The database of a sink refuses the login, or does not exist; a retry changes nothing."""


class ServiceFailed(KcrError):
    """An embedded service did not start or stop, or something it needs could not be downloaded."""


class TimedOut(KcrError):
    """A wait ran out of time; the message names its goal and its length."""


class BrokerUnavailable(KcrError):
    """Kafka can't be reached, or did not answer in time; the message says which address was tried and for how long."""


class StoreError(KcrError):
    """The store can't serve this request."""


class StoreUnavailable(StoreError):
    """The store can't be reached; the message says which address was tried and for how long."""


class StoreRefused(StoreUnavailable):
    """The store's server answers and refuses: the login, the database or a right is wrong; the message says which."""


class StoreBusy(StoreError):
    """The store did not get to the request in time (a lock or statement timeout); nothing was changed, ask again."""


class OutcomeUnknown(StoreError):
    """The connection was lost while COMMIT was on its way: read the outcome before repeating the call."""


class SchemaMissing(StoreError):
    """The store has no kcr schema yet; run `kcr store upgrade`."""


class SchemaTooOld(StoreError):
    """The store's schema is older than this program; run `kcr store upgrade`."""


class SchemaTooNew(StoreError):
    """The store's schema is newer than this program; upgrade airflow-kcr where this program runs."""


class StoreRestored(StoreError):
    """The store was restored from an older state than a member has already acted on; the region is halted."""
