"""Mutants: guards of protocol, store and sinks, each taken away alone, and the test that notices.

A guard that no test misses could be deleted by accident. Each mutant is the package with one piece of text replaced,
and `killed_by` names an ordinary test that fails on it. `python -m tests.mutants` tries them all; the table in
docs/reference/mutants.md is made from here. `tests/simulation/test_guards.py` takes guards of the protocol away with
scripts of its own, several at once where one stands behind another.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "airflow_kcr"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """The package without one guard."""

    what: str
    """What the guard sees to."""

    module: str
    """Where it stands, below `airflow_kcr`."""

    guard: str
    """The text that is replaced; it stands once in the module."""

    without: str
    """What stands there in the mutant."""

    killed_by: str
    """The test that fails on it: file and name, as pytest takes them; of a parametrised one, at least one case."""

    @property
    def name(self) -> str:
        """How the mutant is asked for."""
        return f"{self.module}: {self.what}"

    @property
    def imported_as(self) -> str:
        """The module as it is imported."""
        return f"{PACKAGE.name}.{self.module}"

    @property
    def path(self) -> Path:
        """The file of the module."""
        place = PACKAGE.joinpath(*self.module.split("."))
        return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")

    def source(self) -> str:
        """Return the module's text without the guard.

        Raises:
            LookupError: the guard does not stand there once: the code has changed, and so has what is to be taken away.
        """
        text = self.path.read_text(encoding="utf-8")
        if (times := text.count(self.guard)) != 1:
            raise LookupError(f"{self.name}: the guard stands {times} times in {self.path.name}: {self.guard}")
        return text.replace(self.guard, self.without)


MUTANTS = (
    Mutant(
        what="a claim names the member's own group and topics",
        module="protocol.region.claims",
        guard=(
            "if partition.group != proposal.member.group or not region.rules.subscribes(partition.group, "
            "partition.topic):"
        ),
        without="if False:",
        killed_by="tests/unit/protocol/region/test_claims.py::test_a_member_claims_only_what_the_spec_gives_its_group",
    ),
    Mutant(
        what="a start position lies in its log",
        module="protocol.region.claims",
        guard="if start.offset not in assigned.bounds:",
        without="if False:",
        killed_by="tests/unit/protocol/region/test_claims.py::test_a_start_position_outside_of_its_log_is_refused",
    ),
    Mutant(
        what="a claim that moves partitions aborts the open checkpoint",
        module="protocol.region.claims",
        guard="if moved and region.open_checkpoint is not None:",
        without="if False:",
        killed_by=(
            "tests/unit/protocol/region/test_claims.py::"
            "test_a_claim_that_changes_who_holds_what_aborts_an_open_checkpoint_which_is_tried_again"
        ),
    ),
    Mutant(
        what="a position outside its log is not claimed",
        module="protocol.region.claims",
        guard="if trouble:\n",
        without="if False:\n",
        killed_by=(
            "tests/simulation/scenarios/test_c31_c40.py::"
            "test_c38_a_restore_point_that_retention_has_overtaken_halts_at_once_with_the_choices"
        ),
    ),
    Mutant(
        what="a claim waits for the batch that runs there",
        module="protocol.region.claims",
        guard="if busy and batch.member != proposal.member and _stands(region, batch, now):",
        without="if False:",
        killed_by=(
            "tests/unit/protocol/region/test_claims.py::"
            "test_a_claim_waits_while_a_batch_of_another_live_member_runs_there"
        ),
    ),
    Mutant(
        what="a claim does not wait for longer than a batch may take",
        module="protocol.region.claims",
        guard="or proposal.waited >= region.rules.timeouts.batch:",
        without="or False:",
        killed_by="tests/unit/protocol/region/test_claims.py::test_but_not_for_longer_than_a_batch_may_take",
    ),
    Mutant(
        what="a claim does not wait for a batch that nobody finishes",
        module="protocol.region.claims",
        guard="and coverage.is_current(region, c, now)",
        without="and True",
        killed_by="tests/unit/protocol/region/test_claims.py::test_and_not_for_one_that_nobody_will_finish",
    ),
    Mutant(
        what="a partition with a batch that was not accepted is not handed over",
        module="protocol.region.state",
        guard="return claim.is_in_flight or (",
        without="return (",
        killed_by="tests/unit/protocol/region/test_claims.py::test_and_not_for_one_that_nobody_will_finish",
    ),
    Mutant(
        what="a partition whose output its owner may hold is not handed over",
        module="protocol.region.state",
        guard="(claim.is_started and rules is not None and rules.holds_output)",
        without="False",
        killed_by=(
            "tests/unit/protocol/region/test_claims.py::"
            "test_where_sinks_hold_output_whatever_was_started_is_not_handed_over"
        ),
    ),
    Mutant(
        what="a reset goes back for output that a process may hold",
        module="protocol.region.resets",
        guard="if rules.is_done_by_checkpoints:",
        without="if False:",
        killed_by=(
            "tests/unit/protocol/region/test_held_output.py::"
            "test_an_automatic_reset_goes_back_for_output_unless_nothing_may_be_processed_twice"
        ),
    ),
    Mutant(
        what="output that at_most_once may have shown is not gone back for",
        module="protocol.rules",
        guard="return self.holds_output and self.delivery is not Delivery.AT_MOST_ONCE",
        without="return self.holds_output",
        killed_by="tests/unit/protocol/region/test_held_output.py::test_at_most_once_stays_where_it_is",
    ),
    Mutant(
        what="a position outside its log undoes output that no checkpoint has",
        module="protocol.region.lost_logs",
        guard="back = resets.gone_back_for_output(region, now, ResetCause.OUT_OF_RANGE)",
        without="back = region",
        killed_by=(
            "tests/unit/protocol/region/test_held_output.py::"
            "test_whatever_opens_a_timeline_without_a_drain_undoes_what_no_checkpoint_has"
        ),
    ),
    Mutant(
        what="a place that a sink has yet to say stays out of its log when the region goes back for output",
        module="protocol.region.lost_logs",
        guard="return (*out_of_range(back, {t.partition: t.bounds for t in troubles}), *unsaid)",
        without="return out_of_range(back, {t.partition: t.bounds for t in troubles})",
        killed_by=(
            "tests/unit/protocol/region/test_held_output.py::"
            "test_a_place_that_a_sink_has_yet_to_say_is_still_out_of_its_log"
        ),
    ),
    Mutant(
        what="going back for output takes nothing from what sinks with progress have done",
        module="protocol.region.lost_logs",
        guard="_opened(back, now, left, done)",
        without="_opened(back, now, left, _done_by_sinks(back))",
        killed_by=(
            "tests/unit/protocol/region/test_held_output.py::"
            "test_a_place_that_a_sink_has_yet_to_say_is_still_out_of_its_log"
        ),
    ),
    Mutant(
        what="a forced reset undoes output that no checkpoint has",
        module="protocol.region.person_resets",
        guard="region = resets.gone_back_for_output(region, now, ResetCause.PERSON)\n    return",
        without="return",
        killed_by=(
            "tests/unit/protocol/region/test_held_output.py::"
            "test_whatever_opens_a_timeline_without_a_drain_undoes_what_no_checkpoint_has"
        ),
    ),
    Mutant(
        what="a reset of a stopped region undoes output that no checkpoint has",
        module="protocol.region.person_resets",
        guard="_with_skips(resets.gone_back_for_output(region, now, ResetCause.PERSON), now, reset)",
        without="_with_skips(region, now, reset)",
        killed_by=(
            "tests/unit/protocol/region/test_held_output.py::"
            "test_a_stopped_region_that_was_not_drained_is_planned_and_reset_from_its_checkpoint"
        ),
    ),
    Mutant(
        what="a partition is handed over at its position",
        module="protocol.region.claims",
        guard="place = row.resume if not row.is_started else row.position",
        without="place = row.resume",
        killed_by=(
            "tests/unit/protocol/region/test_claims.py::"
            "test_a_partition_that_its_owner_has_processed_goes_on_with_the_next_one_where_its_batches_ended"
        ),
    ),
    Mutant(
        what="a log that was read before the owner's last batch counts to where that ended",
        module="protocol.region.claims",
        guard="return replace(log, end=max(log.end, row.position))",
        without="return log",
        killed_by=(
            "tests/unit/protocol/region/test_claims.py::"
            "test_a_log_that_was_read_before_the_last_batch_of_its_owner_is_no_reason_to_halt"
        ),
    ),
    Mutant(
        what="in a reset, what nobody has acknowledged with is acknowledged by its next owner",
        module="protocol.region.claims",
        guard="return member.acknowledged if is_placed or member.acknowledged != region.epoch else None",
        without="return member.acknowledged",
        killed_by=(
            "tests/unit/protocol/region/test_claims.py::"
            "test_in_a_reset_who_takes_over_what_nobody_has_acknowledged_with_acknowledges_again"
        ),
    ),
    Mutant(
        what="a member claims what it has left only after the batch that reads more",
        module="protocol.member.duties",
        guard="if batch is not None and not batch.ranges.keys() <= assignment.partitions:",
        without="if False:",
        killed_by=(
            "tests/simulation/scenarios/test_c01_c10.py::"
            "test_c03_a_member_whose_batch_lost_a_partition_finishes_it_and_only_then_claims_what_it_has_left"
        ),
    ),
    Mutant(
        what="only live states take claims",
        module="protocol.region.claims",
        guard='require_state(region, CLAIM_STATES, "a claim")',
        without="pass",
        killed_by="tests/unit/protocol/region/test_claims.py::test_a_halted_or_stopped_region_takes_no_claims",
    ),
    Mutant(
        what="a member of another cluster halts the region",
        module="protocol.region.claims",
        guard="if lost_logs.is_another_cluster(region, proposal.member.group, proposal.cluster):",
        without="if False:",
        killed_by=(
            "tests/contract/test_clusters_contract.py::"
            "test_a_claim_in_another_cluster_halts_the_region_and_moves_nothing"
        ),
    ),
    Mutant(
        what="a batch has ranges",
        module="protocol.region.batches",
        guard="if not request.ranges:",
        without="if False:",
        killed_by=(
            "tests/unit/protocol/region/test_batches.py::test_a_batch_without_ranges_is_a_plan_that_was_not_looked_at"
        ),
    ),
    Mutant(
        what="no batch starts while the region is to pause or stop",
        module="protocol.region.batches",
        guard="if region.desired_state is not DesiredState.RUNNING and not approaching:",
        without="if False:",
        killed_by=(
            "tests/unit/protocol/region/test_batches.py::"
            "test_and_while_that_is_the_desired_state_unless_a_checkpoint_approaches_its_boundary"
        ),
    ),
    Mutant(
        what="no batch contains a skipped record",
        module="protocol.region.batches",
        guard="    if crossed:",
        without="    if False:",
        killed_by="tests/unit/protocol/region/test_batches.py::test_a_skipped_record_is_never_processed",
    ),
    Mutant(
        what="no batch goes beyond the count of the next checkpoint",
        module="protocol.region.batches",
        guard="if left is not None and width > left:",
        without="if False:",
        killed_by="tests/unit/protocol/region/test_batches.py::test_a_batch_is_capped_to_what_is_left",
    ),
    Mutant(
        what="only the batch that runs is accepted",
        module="protocol.region.batches",
        guard="if batch is None or batch.member != member:\n",
        without="if batch is None:\n",
        killed_by="tests/unit/protocol/region/test_batches.py::test_an_end_of_what_does_not_run_is_refused",
    ),
    Mutant(
        what="a batch finishes where it started",
        module="protocol.region.batches",
        guard="if claim.position != range_.from_:",
        without="if False:",
        killed_by="tests/unit/protocol/region/test_batches.py::test_an_end_whose_position_has_moved_is_refused",
    ),
    Mutant(
        what="only its owner discards a batch",
        module="protocol.region.batches",
        guard="if batch is None or batch.member != member or batch.incarnation > incarnation:",
        without="if batch is None:",
        killed_by=(
            "tests/unit/protocol/region/test_batches.py::"
            "test_a_newer_incarnation_discards_for_its_predecessor_and_not_the_other_way_round"
        ),
    ),
    Mutant(
        what="an accepted batch steps over skipped records",
        module="protocol.region.batches",
        guard="place = past_skips(region, partition, range_.to)",
        without="place = range_.to",
        killed_by="tests/unit/protocol/region/test_batches.py::test_an_end_steps_over_skipped_records_behind_the_range",
    ),
    Mutant(
        what="a batch that is asked for again starts once",
        module="protocol.region.batches",
        guard="if request.batch in region.running:",
        without="if False:",
        killed_by="tests/unit/protocol/region/test_batches.py::test_the_same_batch_again_is_the_one_that_runs",
    ),
    Mutant(
        what="a contribution is stored once",
        module="protocol.region.completion",
        guard="if earlier is not None:\n        raise",
        without="if False:\n        raise",
        killed_by=(
            "tests/unit/protocol/region/test_completion.py::"
            "test_a_member_that_contradicts_its_own_contribution_is_refused"
        ),
    ),
    Mutant(
        what="no member contributes while its batch runs",
        module="protocol.region.completion",
        guard="    if running:\n",
        without="    if False:\n",
        killed_by="tests/unit/protocol/region/test_completion.py::test_nobody_contributes_in_the_middle_of_a_batch",
    ),
    Mutant(
        what="a contribution covers exactly what is held",
        module="protocol.region.completion",
        guard="    if strange:\n",
        without="    if False:\n",
        killed_by="tests/unit/protocol/region/test_completion.py::test_a_member_contributes_exactly_what_it_holds",
    ),
    Mutant(
        what="a contribution is the position that the store has",
        module="protocol.region.completion",
        guard="if claim.position != offset:",
        without="if False:",
        killed_by=(
            "tests/unit/protocol/region/test_completion.py::"
            "test_a_member_contributes_the_positions_that_the_store_knows"
        ),
    ),
    Mutant(
        what="a contribution lies in its log",
        module="protocol.region.completion",
        guard="log.start <= offset and (offset <= log.end or offset <= past_skips(region, partition, log.end))",
        without="True",
        killed_by=(
            "tests/unit/protocol/region/test_completion.py::"
            "test_a_position_that_is_not_in_the_log_as_read_with_it_is_refused"
        ),
    ),
    Mutant(
        what="a contribution is of the topic that was claimed",
        module="protocol.region.completion",
        guard="if timelines.is_recreated(claim.topic_id, log.topic_id):",
        without="if False:",
        killed_by=(
            "tests/unit/protocol/region/test_recreated_topics.py::"
            "test_a_position_is_no_part_of_a_checkpoint_beside_the_log_of_another_topic"
        ),
    ),
    Mutant(
        what="contributions do not overlap",
        module="protocol.region.completion",
        guard="        if shared:",
        without="        if False:",
        killed_by="tests/unit/protocol/region/test_completion.py::test_a_double_claim_is_never_merged",
    ),
    Mutant(
        what="only a complete checkpoint is published",
        module="protocol.region.completion",
        guard="if checkpoint.state is not CheckpointState.COMPLETE:",
        without="if False:",
        killed_by="tests/unit/protocol/region/test_completion.py::test_what_is_not_complete_is_not_published",
    ),
    Mutant(
        what="a seek entry is answered by who holds the partition",
        module="protocol.region.resets",
        guard="if claim is None or claim.owner != caller.member or not coverage.is_current(region, claim, now):",
        without="if False:",
        killed_by=(
            "tests/unit/protocol/region/test_acknowledgement.py::test_nobody_answers_for_what_it_does_not_hold_now"
        ),
    ),
    Mutant(
        what="an acknowledgement comes after the claim",
        module="protocol.region.resets",
        guard="if row.claimed != region.epoch:",
        without="if False:",
        killed_by="tests/unit/protocol/region/test_acknowledgement.py::test_a_member_claims_before_it_acknowledges",
    ),
    Mutant(
        what="an acknowledgement leaves no entry open",
        module="protocol.region.resets",
        guard="    if unanswered:",
        without="    if False:",
        killed_by="tests/unit/protocol/region/test_acknowledgement.py::test_and_answers_what_is_open",
    ),
    Mutant(
        what="a member built from an older spec does not come in",
        module="protocol.region.membership",
        guard="if arrival.spec_revision is not None and arrival.spec_revision < region.spec.revision:",
        without="if False:",
        killed_by=(
            "tests/unit/protocol/region/test_specs.py::"
            "test_who_was_built_from_the_old_spec_can_do_nothing_any_more_and_comes_back_built_from_the_new_one"
        ),
    ),
    Mutant(
        what="a clock that goes back does not revive who was built from an older spec",
        module="protocol.region.specs",
        guard="Lease(incarnation=Incarnation(0), until=min(lease.until, now))",
        without="Lease(incarnation=lease.incarnation, until=min(lease.until, now))",
        killed_by=(
            "tests/unit/protocol/region/test_specs.py::test_a_clock_that_goes_back_does_not_bring_them_back_to_life"
        ),
    ),
    Mutant(
        what="a batch of one that died before the spec changed keeps its time",
        module="protocol.region.specs",
        guard="    for member in region.leases:\n        region = membership",
        without="    for member in live_members(region, now):\n        region = membership",
        killed_by="tests/unit/protocol/region/test_specs.py::test_a_batch_of_one_that_died_just_before_keeps_its_time",
    ),
    Mutant(
        what="a corrected spec counts where members can not start",
        module="protocol.region.specs",
        guard="if region.next_spec is None or not _is_blocked(region, now):",
        without="if True:",
        killed_by=(
            "tests/unit/protocol/region/test_specs.py::"
            "test_where_a_member_can_not_start_a_corrected_spec_counts_at_once"
        ),
    ),
    Mutant(
        what="no member joins a stopped region",
        module="protocol.region.membership",
        guard="if region.state is RegionState.STOPPED:\n        raise",
        without="if False:\n        raise",
        killed_by="tests/unit/protocol/region/test_membership.py::test_joining_does_not_start_a_stopped_region",
    ),
    Mutant(
        what="an index in use is refused",
        module="protocol.region.membership",
        guard="if live and not arrival.takeover:",
        without="if False:",
        killed_by="tests/unit/protocol/region/test_membership.py::test_a_live_index_is_not_taken_over_by_accident",
    ),
    Mutant(
        what="a takeover waits for the drain",
        module="protocol.region.membership",
        guard="if live and _is_draining(region, member):",
        without="if False:",
        killed_by=(
            "tests/unit/protocol/region/test_membership.py::"
            "test_a_takeover_waits_for_a_drain_until_the_member_has_contributed"
        ),
    ),
    Mutant(
        what="an index is one of the spec's",
        module="protocol.region.membership",
        guard="if not 0 <= member.index < rules.members:",
        without="if False:",
        killed_by=(
            "tests/unit/protocol/region/test_membership.py::"
            "test_an_index_or_group_that_the_spec_does_not_have_is_refused_with_what_there_is"
        ),
    ),
    Mutant(
        what="a predecessor's batch may write until its lease is over",
        module="protocol.region.membership",
        guard="region = with_predecessor_fenced(region, member)\n    incarnation",
        without="region = region\n    incarnation",
        killed_by=(
            "tests/unit/protocol/region/test_membership.py::"
            "test_what_the_superseded_incarnation_left_running_has_a_moment_from_which_it_can_not_write"
        ),
    ),
    Mutant(
        what="a repeated registration is the same one",
        module="protocol.region.membership",
        guard="if row is not None and row.token == arrival.token and is_live(region, member, now):",
        without="if False:",
        killed_by="tests/unit/protocol/region/test_membership.py::test_a_repeated_registration_is_the_one_that_was_made",
    ),
    Mutant(
        what="a plan of another epoch is stale",
        module="protocol.region.person_resets",
        guard="if command.epoch != region.epoch:",
        without="if False:",
        killed_by=(
            "tests/unit/protocol/region/test_person_resets.py::"
            "test_a_plan_of_another_epoch_is_refused_and_nothing_is_stored"
        ),
    ),
    Mutant(
        what="a reset and a checkpoint have ids of their own",
        module="protocol.region.person_resets",
        guard="    if request_of(region, reset.request_id) is not None:\n        raise",
        without="    if False:\n        raise",
        killed_by="tests/unit/protocol/region/test_requests.py::test_a_checkpoint_and_a_reset_never_share_a_request_id",
    ),
    Mutant(
        what="a halted region is reset by force only",
        module="protocol.region.person_resets",
        guard="if region.state in {RegionState.HALTED, RegionState.STARTING} and not reset.forced:",
        without="if False:",
        killed_by=(
            "tests/unit/protocol/region/test_person_resets.py::test_a_region_that_can_not_drain_needs_to_be_forced"
        ),
    ),
    Mutant(
        what="a reset to a retired checkpoint is refused",
        module="protocol.region.plans",
        guard="if row.state is CheckpointState.RETIRED:",
        without="if False:",
        killed_by="tests/unit/protocol/region/test_resolution.py::test_a_retired_checkpoint_is_gone",
    ),
    Mutant(
        what="a reset to an undone checkpoint needs --forward",
        module="protocol.region.plans",
        guard="if row.is_complete and not row.is_current and not reset.forward:",
        without="if False:",
        killed_by=(
            "tests/unit/protocol/region/test_resolution.py::"
            "test_another_branch_only_as_a_forward_jump_that_says_what_is_missing"
        ),
    ),
    Mutant(
        what="a reset to an incomplete checkpoint needs --allow-partial",
        module="protocol.region.plans",
        guard="if not row.is_complete and not reset.allow_partial:",
        without="if False:",
        killed_by="tests/unit/protocol/region/test_resolution.py::test_an_open_or_aborted_checkpoint_only_by_name",
    ),
    Mutant(
        what="a reset that sinks can't follow needs consent",
        module="protocol.region.plans",
        guard="    if sinks:",
        without="    if False:",
        killed_by=(
            "tests/unit/protocol/region/test_consent.py::"
            "test_a_time_counts_as_going_back_as_it_is_looked_up_after_the_begin"
        ),
    ),
    Mutant(
        what="failures halt the region in the end",
        module="protocol.region.resets",
        guard="if failures <= region.rules.max_failures:",
        without="if True:",
        killed_by=(
            "tests/unit/protocol/region/test_resets.py::"
            "test_failed_batches_and_used_up_attempts_halt_the_region_in_the_end"
        ),
    ),
    Mutant(
        what="an attempt ends with its deadline",
        module="protocol.region.resets",
        guard="if reset.deadline is not None and reset.deadline <= now:",
        without="if False:",
        killed_by=(
            "tests/unit/protocol/region/test_resets.py::"
            "test_attempts_expire_and_count_as_failures_and_say_what_was_missing"
        ),
    ),
    Mutant(
        what="an open seek entry is written once",
        module="protocol.region.resets",
        guard="if p not in region.seek or region.seek[p].offset is None",
        without="if True",
        killed_by="tests/unit/protocol/region/test_resets.py::test_an_entry_once_written_never_changes",
    ),
    Mutant(
        what="a reset starts an epoch",
        module="protocol.region.resets",
        guard="epoch=Epoch(region.epoch + 1),",
        without="epoch=region.epoch,",
        killed_by=(
            "tests/unit/protocol/region/test_resets.py::test_a_begin_is_a_new_epoch_and_a_burnt_sequence_with_its_cause"
        ),
    ),
    Mutant(
        what="a new restore point opens a timeline",
        module="protocol.region.resets",
        guard="Timeline(region.timeline + 1)",
        without="region.timeline",
        killed_by=(
            "tests/unit/protocol/region/test_resets.py::"
            "test_the_first_one_opens_the_first_timeline_and_is_its_restore_point"
        ),
    ),
    Mutant(
        what="a start waits for members that have not arrived",
        module="protocol.region.coverage",
        guard="    if until is None or until <= now:\n        return ()",
        without="    if True:\n        return ()",
        killed_by=(
            "tests/unit/protocol/region/test_arrivals.py::"
            "test_a_start_waits_for_a_member_that_has_not_arrived_and_names_it"
        ),
    ),
    Mutant(
        what="a batch of a superseded process may write until its lease is over",
        module="protocol.region.coverage",
        guard="return moment is not None and moment <= now",
        without="return True",
        killed_by=(
            "tests/unit/protocol/region/test_coverage.py::"
            "test_a_batch_is_quiesced_once_its_lease_and_the_end_of_its_process_are_over"
        ),
    ),
    Mutant(
        what="an attempt's deadline runs only while the partitions can be covered",
        module="protocol.region.coverage",
        guard="if owner is not None and owner not in live:",
        without="if False:",
        killed_by=(
            "tests/unit/protocol/region/test_coverage.py::"
            "test_a_dead_members_partitions_stay_with_it_as_far_as_kafka_is_concerned"
        ),
    ),
    Mutant(
        what="a member that left is not live",
        module="protocol.region.state",
        guard="and not row.left",
        without="and True",
        killed_by=(
            "tests/unit/protocol/region/test_state.py::"
            "test_a_member_is_live_as_long_as_its_newest_incarnation_holds_a_lease"
        ),
    ),
    Mutant(
        what="a lease ends",
        module="protocol.region.state",
        guard="and lease.until > now",
        without="and True",
        killed_by=(
            "tests/unit/protocol/region/test_state.py::"
            "test_a_member_is_live_as_long_as_its_newest_incarnation_holds_a_lease"
        ),
    ),
    Mutant(
        what="a request id names one request",
        module="protocol.region.checkpoints",
        guard="if known is not None and (known.purpose, known.boundary) != (purpose, boundary):",
        without="if False:",
        killed_by="tests/unit/protocol/region/test_requests.py::test_a_request_id_names_one_request_and_no_other",
    ),
    Mutant(
        what="the region's own request ids are no one else's",
        module="protocol.region.checkpoints",
        guard="if request_id.startswith(OWN_REQUEST_IDS):",
        without="if False:",
        killed_by=(
            "tests/unit/protocol/region/test_requests.py::"
            "test_nobody_else_may_ask_under_a_request_id_of_the_regions_own"
        ),
    ),
    Mutant(
        what="a region without members is not drained",
        module="protocol.region.checkpoints",
        guard="if purpose is CheckpointPurpose.DRAIN and not live_members(region, now):",
        without="if False:",
        killed_by="tests/unit/protocol/region/test_requests.py::test_nobody_can_drain_a_region_without_a_live_member",
    ),
    Mutant(
        what="a stopped region is not checkpointed",
        module="protocol.region.checkpoints",
        guard="if region.state in {RegionState.HALTED, RegionState.STOPPED}:",
        without="if False:",
        killed_by=(
            "tests/unit/protocol/region/test_requests.py::"
            "test_a_stopped_or_halted_region_checkpoints_nothing_and_says_why"
        ),
    ),
    Mutant(
        what="an undone checkpoint answers nothing",
        module="protocol.region.checkpoints",
        guard="if checkpoint is not None and checkpoint.is_current else None",
        without="if checkpoint is not None else None",
        killed_by=(
            "tests/unit/protocol/region/test_requests.py::"
            "test_a_run_whose_checkpoint_a_later_timeline_has_undone_asks_anew"
        ),
    ),
    Mutant(
        what="a pin is for complete checkpoints",
        module="protocol.region.completion",
        guard="    if not row.is_complete:\n        raise",
        without="    if False:\n        raise",
        killed_by="tests/unit/protocol/region/test_retirement.py::test_only_what_has_offsets_is_pinned",
    ),
    Mutant(
        what="a region whose numbers are used up says so",
        module="protocol.region.timelines",
        guard="if number >= MAX_NUMBER:",
        without="if False:",
        killed_by=(
            "tests/contract/test_large_numbers_contract.py::"
            "test_a_region_that_has_used_up_its_numbers_says_so_and_is_begun_anew"
        ),
    ),
    Mutant(
        what="a region with members is not deleted",
        module="protocol.region.lifecycle",
        guard="if region.state is not RegionState.STOPPED or live:",
        without="if False:",
        killed_by="tests/unit/protocol/region/test_lifecycle.py::test_a_region_that_anybody_may_work_for_is_not_deleted",
    ),
    Mutant(
        what="no policy decides about logs of another cluster",
        module="protocol.region.lost_logs",
        guard="if is_another_cluster(region, caller.member.group, told.cluster):",
        without="if False:",
        killed_by="tests/contract/test_clusters_contract.py::test_no_policy_decides_about_logs_of_another_cluster",
    ),
    Mutant(
        what="the first cluster that is told counts",
        module="protocol.region.lost_logs",
        guard="    if is_another_cluster(region, group, cluster):\n        raise",
        without="    if False:\n        raise",
        killed_by=(
            "tests/contract/test_clusters_contract.py::test_a_report_of_another_cluster_is_refused_with_the_way_out"
        ),
    ),
    Mutant(
        what="an event comes in a state that awaits it",
        module="protocol.member.step",
        guard="if member.state not in states:",
        without="if False:",
        killed_by="tests/unit/protocol/member/test_step.py::test_what_can_not_happen_says_what_it_is_and_in_which_state",
    ),
    Mutant(
        what="a renewal of another incarnation fences",
        module="protocol.member.step",
        guard="if member.incarnation is not None and newest > member.newest_incarnation:",
        without="if False:",
        killed_by="tests/unit/protocol/member/test_batch_steps.py::test_a_fenced_member_lets_it_go_without_a_word",
    ),
    Mutant(
        what="a claim of an older assignment is void",
        module="protocol.member.step",
        guard=(
            "if assignment is None or assignment.assignment != event.command.assignment or member.incarnation is None:"
        ),
        without="if member.incarnation is None:",
        killed_by="tests/unit/protocol/member/test_step.py::test_a_claim_of_an_older_assignment_is_void",
    ),
    Mutant(
        what="an older view changes nothing",
        module="protocol.member.step",
        guard="if is_old and view.epoch >= member.newest_epoch and view.incarnation == mine:",
        without="if False:",
        killed_by="tests/unit/protocol/member/test_step.py::test_an_older_view_changes_nothing",
    ),
    Mutant(
        what="a member moves only as the table says",
        module="protocol.member.state",
        guard="if state is not member.state and state not in MOVES[member.state]:",
        without="if False:",
        killed_by=(
            "tests/unit/protocol/member/test_state.py::test_a_move_is_in_the_table_or_it_raises_and_nothing_has_changed"
        ),
    ),
    Mutant(
        what="a store that is away too long makes members leave",
        module="protocol.member.duties",
        guard="if now - member.store_lost_at < state.seconds(member.timeouts.store_grace):",
        without="if True:",
        killed_by=(
            "tests/unit/protocol/member/test_presence.py::"
            "test_a_store_that_is_away_too_long_makes_the_member_leave_and_come_back_with_it"
        ),
    ),
    Mutant(
        what="a process ends within the close time",
        module="protocol.member.duties",
        guard="if spent >= state.seconds(member.timeouts.close):",
        without="if False:",
        killed_by="tests/unit/protocol/member/test_presence.py::test_and_ends_the_process_where_that_does_not_help",
    ),
    Mutant(
        what="an expired lease is not revived",
        module="store.postgres.transactions",
        guard="        WHERE l.valid_until > clock_timestamp()\n        FOR NO KEY",
        without="        FOR NO KEY",
        killed_by="tests/contract/test_members_contract.py::test_an_expired_lease_is_never_revived",
    ),
    Mutant(
        what="a decision on a lease that moved is made again",
        module="store.postgres.region_writes",
        guard="if touched != len(moved):",
        without="if False:",
        killed_by=(
            "tests/contract/test_postgres_faults.py::"
            "test_a_decision_on_a_lease_that_was_renewed_meanwhile_is_made_again"
        ),
    ),
    Mutant(
        what="an older program leaves a newer store alone",
        module="store.schema_upgrade",
        guard="if current is not None and int(current) > int(HEAD):",
        without="if False:",
        killed_by="tests/migration/test_migrations.py::test_a_newer_schema_is_refused_and_not_downgraded",
    ),
    Mutant(
        what="a program leaves an older store alone",
        module="store.postgres.tables",
        guard="if int(current) < int(HEAD):",
        without="if False:",
        killed_by="tests/migration/test_migrations.py::test_an_older_schema_is_refused",
    ),
    Mutant(
        what="a repeated finish is answered",
        module="store.regions",
        guard="if row is None or row.outcome is not Outcome.DONE or row.incarnation != incarnation:",
        without="if True:",
        killed_by=(
            "tests/unit/store/test_regions.py::"
            "test_an_end_that_was_accepted_before_is_no_error_and_one_that_was_refused_is"
        ),
    ),
    Mutant(
        what="an instant in the store has a zone",
        module="store.codec",
        guard="if instant.tzinfo is None:",
        without="if False:",
        killed_by="tests/unit/store/test_codec.py::test_what_was_not_written_here_is_refused",
    ),
    Mutant(
        what="a name is free once its region is deleted whole",
        module="store.postgres.transactions",
        guard="                if region_writes.find_doomed(session, name):",
        without="                if False:",
        killed_by=(
            "tests/contract/test_deletion_contract.py::"
            "test_a_deletion_that_was_interrupted_is_told_by_every_verb_and_goes_on"
        ),
    ),
    Mutant(
        what="what is left of a deleted region is not listed",
        module="store.postgres.transactions",
        guard="self._connections.answer(_NAMES) if not region_writes.is_doomed(name))",
        without="self._connections.answer(_NAMES))",
        killed_by=(
            "tests/contract/test_deletion_contract.py::"
            "test_a_deletion_that_was_interrupted_is_told_by_every_verb_and_goes_on"
        ),
    ),
    Mutant(
        what="decisions on a region are one at a time",
        module="store.postgres.transactions",
        guard="transaction(_EXCLUSIVE, region_key=_key(name)) as session, uncollected():",
        without="transaction(NO_LOCK) as session, uncollected():",
        killed_by="tests/contract/test_postgres_faults.py::test_whoever_may_write_what_another_has_read_waits_for_it",
    ),
    Mutant(
        what="a batch starts and finishes beside no decision",
        module="store.postgres.transactions",
        guard="transaction(_SHARED, region_key=_key(name), member_key=_key(name, member)) as session:",
        without="transaction(NO_LOCK) as session:",
        killed_by="tests/contract/test_postgres_faults.py::test_whoever_may_write_what_another_has_read_waits_for_it",
    ),
    Mutant(
        what="starts and finishes of one member are one at a time",
        module="store.postgres.transactions",
        guard="pg_advisory_xact_lock_shared(:region_key), pg_advisory_xact_lock(:member_key)",
        without="pg_advisory_xact_lock_shared(:region_key)",
        killed_by="tests/contract/test_postgres_faults.py::test_whoever_may_write_what_another_has_read_waits_for_it",
    ),
    Mutant(
        what="a fence keeps an older epoch out of the table",
        module="sinks.postgres.transactions",
        guard="if fence > call.epoch:",
        without="if False:",
        killed_by=(
            "tests/contract/sinks/test_postgres_sink_faults.py::"
            "TestTwoAtOnce::test_a_publication_waits_for_a_fence_and_is_refused"
        ),
    ),
    Mutant(
        what="a table that was restored is noticed by its fence",
        module="sinks.postgres.transactions",
        guard="if fence < call.epoch:",
        without="if False:",
        killed_by=(
            "tests/contract/sinks/test_postgres_sink.py::"
            "TestZombies::test_of_an_epoch_that_no_reset_announced_writes_nothing"
        ),
    ),
    Mutant(
        what="a later timeline's progress keeps a batch out",
        module="sinks.postgres.transactions",
        guard="if row.timeline > call.timeline:",
        without="if False:",
        killed_by="tests/contract/sinks/test_postgres_sink.py::TestZombies::test_of_an_older_timeline_writes_nothing",
    ),
    Mutant(
        what="a batch starts at the table's progress",
        module="sinks.postgres.transactions",
        guard="if (exact and range_.from_ != row.offset) or skips_forward:",
        without="if False:",
        killed_by=(
            "tests/contract/sinks/test_postgres_sink.py::"
            "TestDeliveries::test_exactly_once_begins_where_the_table_is_and_nowhere_else"
        ),
    ),
    Mutant(
        what="rows name records of their batch",
        module="sinks.postgres.transactions",
        guard="if read is None or first < read.from_ or last >= read.to:",
        without="if False:",
        killed_by=(
            "tests/contract/sinks/test_postgres_sink.py::"
            "TestPublishing::test_refuses_rows_of_records_that_the_batch_has_not_read"
        ),
    ),
    Mutant(
        what="staged rows that a crash lost are not published",
        module="sinks.postgres.transactions",
        guard="if crash_mark(connection, place) != staging.crash_mark:",
        without="if False:",
        killed_by=(
            "tests/contract/sinks/test_postgres_sink_faults.py::"
            "TestCrash::test_a_batch_that_was_staged_before_it_is_not_published_without_its_rows"
        ),
    ),
    Mutant(
        what="a batch that is published again changes nothing",
        module="sinks.postgres.transactions",
        guard="if all(row.batch == call.batch for row in before.values()):",
        without="if False:",
        killed_by="tests/contract/sinks/test_postgres_sink.py::TestPublishing::test_said_twice_is_done_once",
    ),
    Mutant(
        what="a record below progress is not written again",
        module="sinks.postgres.transactions",
        guard='AND s.kcr_offset >= p."offset"\'',
        without="'",
        killed_by=(
            "tests/contract/sinks/test_postgres_sink.py::TestDeliveries::test_the_others_leave_out_what_is_in_the_table"
        ),
    ),
    Mutant(
        what="a timeline starts with a reset of the table",
        module="sinks.postgres.transactions",
        guard="if row.timeline < call.timeline:",
        without="if False:",
        killed_by=(
            "tests/contract/sinks/test_postgres_sink.py::"
            "TestZombies::test_of_a_later_timeline_that_no_reset_announced_writes_nothing"
        ),
    ),
    Mutant(
        what="a record has one row",
        module="sinks.postgres.transactions",
        guard="if target.mode is SinkMode.APPEND and _has_several_rows_for_one_record(connection, staging):",
        without="if False:",
        killed_by="tests/contract/sinks/test_postgres_sink.py::TestPublishing::test_refuses_several_rows_for_one_record",
    ),
    Mutant(
        what="a table that is ahead of the store is told",
        module="sinks.postgres",
        guard="if stands > epoch or newest > timeline:",
        without="if False:",
        killed_by=(
            "tests/contract/sinks/test_postgres_sink.py::"
            "TestResets::test_of_a_store_that_is_older_than_the_table_are_refused"
        ),
    ),
    Mutant(
        what="a folder of a later timeline is refused",
        module="sinks.files",
        guard="if newest > order.timeline:",
        without="if False:",
        killed_by=(
            "tests/unit/sinks/files/test_sink.py::TestResets::test_are_refused_where_the_folder_is_ahead_of_the_store"
        ),
    ),
    Mutant(
        what="another checkpoint of the same number is noticed",
        module="sinks.files",
        guard="if written.digest != contents.digest or not set(written.batches) <= set(mine):",
        without="if False:",
        killed_by=(
            "tests/unit/sinks/files/test_sink.py::"
            "TestPublication::test_refuses_a_checkpoint_of_a_region_that_had_the_same_name"
        ),
    ),
    Mutant(
        what="a folder belongs to one sink",
        module="sinks.files",
        guard="if not owner.is_of(self.target):",
        without="if False:",
        killed_by="tests/unit/sinks/files/test_sink.py::TestTheFolder::test_of_another_sink_is_refused",
    ),
    Mutant(
        what="a folder keeps its format",
        module="sinks.files",
        guard="if owner.format != self.target.format:",
        without="if False:",
        killed_by="tests/unit/sinks/files/test_table.py::test_a_folder_of_another_format_is_refused",
    ),
    Mutant(
        what="a batch is read by its own list of files",
        module="sinks.files",
        guard="if listed is None or listed.batch != piece.batch.batch:",
        without="if listed is None:",
        killed_by=(
            "tests/unit/sinks/files/test_sink.py::"
            "TestPublication::test_refuses_an_accepted_batch_whose_list_is_damaged_or_missing_or_another_s"
        ),
    ),
    Mutant(
        what="an undone checkpoint is not read",
        module="sinks.files.frames",
        guard="if by is not None:",
        without="if False:",
        killed_by=(
            "tests/unit/sinks/files/test_reader.py::"
            "test_a_superseded_checkpoint_is_told_with_the_timeline_that_replaced_it"
        ),
    ),
    Mutant(
        what="a checkpoint whose output was given up is not read",
        module="sinks.files.frames",
        guard="if self._named(layout.RETIRED, sequence):",
        without="if False:",
        killed_by=(
            "tests/unit/sinks/files/test_cleanup.py::"
            "TestRetired::test_checkpoints_can_be_read_until_their_output_is_given_up"
        ),
    ),
    Mutant(
        what="cleaning leaves another sink's folder alone",
        module="sinks.files.cleanup",
        guard="if owner is not None and not owner.is_of(self._target):",
        without="if False:",
        killed_by="tests/unit/sinks/files/test_cleanup.py::TestUndone::test_a_folder_of_another_sink_is_refused",
    ),
)
