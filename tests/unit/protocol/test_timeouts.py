from __future__ import annotations

from dataclasses import fields
from datetime import timedelta
from typing import Any

import pytest

from airflow_kcr.protocol.timeouts import (
    BrokerLimits,
    Clash,
    ConsumerProtocolTimes,
    Timeouts,
    check,
    check_consumer_protocol,
    setting_name,
)


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def pairs(clashes: tuple[Clash, ...]) -> list[tuple[str, str]]:
    return [(clash.setting, clash.other) for clash in clashes]


class TestDefaults:
    def test_are_those_of_the_reference(self) -> None:
        timeouts = Timeouts()
        assert timeouts.lease == seconds(10)
        assert timeouts.renew == seconds(2)
        assert timeouts.reset == seconds(300)
        assert timeouts.drain == seconds(180)
        assert timeouts.publish == seconds(300)
        assert timeouts.commit == seconds(30)
        assert timeouts.close == seconds(10)
        assert timeouts.batch == seconds(120)
        assert timeouts.metadata_refresh == seconds(1)

    @pytest.mark.parametrize("static", [True, False])
    def test_do_not_clash(self, static: bool) -> None:
        assert check(Timeouts(), static=static) == ()


class TestSessionTimeout:
    def test_of_a_dynamic_member_is_short(self) -> None:
        assert Timeouts().session_timeout(static=False) == seconds(20)

    def test_of_a_static_member_outlasts_its_relaunch(self) -> None:
        assert Timeouts().session_timeout(static=True) == seconds(120)
        assert Timeouts(relaunch=seconds(200)).session_timeout(static=True) == seconds(240)

    def test_of_a_static_member_is_never_below_two_minutes(self) -> None:
        assert Timeouts(relaunch=seconds(1)).session_timeout(static=True) == seconds(120)

    @pytest.mark.parametrize("static", [True, False])
    def test_can_be_given(self, static: bool) -> None:
        assert Timeouts(session=seconds(45)).session_timeout(static=static) == seconds(45)


class TestRetry:
    def test_waits_twice_as_long_for_each_failure_in_succession_and_never_longer_than_a_minute(self) -> None:
        waits = [Timeouts().retry_after(failures) for failures in (0, 1, 2, 3, 4, 5, 6, 7, 8, 1_000_000)]
        assert waits == [seconds(n) for n in (0, 1, 2, 4, 8, 16, 32, 60, 60, 60)]

    def test_a_longer_first_wait_is_the_longest_too(self) -> None:
        assert Timeouts(retry=seconds(90)).retry_after(5) == seconds(90)

    def test_the_shortest_one_gets_to_a_minute_too(self) -> None:
        assert Timeouts(retry=seconds(0.01)).retry_after(99) == seconds(60)


class TestWhatFollows:
    def test_the_poll_interval_holds_three_of_the_longer_of_reset_and_drain(self) -> None:
        assert Timeouts().max_poll_interval == seconds(900)
        assert Timeouts(drain=seconds(400)).max_poll_interval == seconds(1200)
        assert Timeouts(max_poll=seconds(1000)).max_poll_interval == seconds(1000)

    @pytest.mark.parametrize(
        ("timeouts", "grace"),
        [
            (Timeouts(), 30),
            (Timeouts(reset=seconds(100)), 25),
            (Timeouts(max_poll=seconds(40)), 20),
        ],
        ids=["capped", "quarter of a reset", "half of the poll interval"],
    )
    def test_a_member_without_the_store_leaves_after_the_shortest_of_three(
        self, timeouts: Timeouts, grace: int
    ) -> None:
        assert timeouts.store_grace == seconds(grace)
        assert timeouts.process_end_limit == seconds(grace)

    @pytest.mark.parametrize("lease", [seconds(1), seconds(10), seconds(60)])
    def test_the_stores_timeouts_are_nested_within_a_lease(self, lease: timedelta) -> None:
        timeouts = Timeouts(lease=lease)
        assert timeouts.idle_in_transaction_session_timeout == lease / 2
        assert timeouts.idle_in_transaction_session_timeout < timeouts.lock_timeout < timeouts.statement_timeout < lease

    def test_the_slowest_renewal_that_the_rules_allow_is_answered_within_the_lease(self) -> None:
        timeouts = Timeouts(lease=seconds(9), renew=seconds(3))
        assert check(timeouts, static=True) == ()
        assert timeouts.renew + timeouts.statement_timeout <= timeouts.lease


class TestClashes:
    @pytest.mark.parametrize("field", [f.name for f in fields(Timeouts) if f.name != "accept_aborted_drain"])
    @pytest.mark.parametrize("value", [seconds(-1), seconds(0), timedelta(milliseconds=9)], ids=str)
    def test_a_time_that_is_a_slip_of_the_unit_is_refused_by_name(self, field: str, value: timedelta) -> None:
        changed: dict[str, Any] = {field: value}
        (clash,) = check(Timeouts(**changed), static=True)
        assert clash.setting == setting_name(field)
        assert "unit" in str(clash)

    def test_the_poll_interval_below_three_resets(self) -> None:
        clashes = check(Timeouts(max_poll=seconds(899)), static=True)
        assert pairs(clashes) == [("timeouts.max_poll_interval", "timeouts.reset")]
        assert check(Timeouts(max_poll=seconds(900)), static=True) == ()

    def test_the_poll_interval_below_three_drains(self) -> None:
        clashes = check(Timeouts(drain=seconds(301), max_poll=seconds(900)), static=True)
        assert pairs(clashes) == [("timeouts.max_poll_interval", "timeouts.drain")]

    def test_a_poll_interval_that_the_client_would_refuse_blames_what_it_was_derived_from(self) -> None:
        (clash,) = check(Timeouts(reset=timedelta(hours=9)), static=True)
        assert clash.setting == "timeouts.reset"
        (clash,) = check(Timeouts(max_poll=timedelta(hours=25)), static=True)
        assert clash.setting == "timeouts.max_poll_interval"

    def test_a_refresh_of_the_metadata_that_the_client_would_refuse(self) -> None:
        (clash,) = check(Timeouts(metadata_refresh=timedelta(hours=2)), static=True)
        assert clash.setting == "timeouts.metadata_refresh"

    @pytest.mark.parametrize(("session", "limit"), [(5.999, "min"), (1800.001, "max")])
    def test_a_session_outside_of_the_brokers_limits(self, session: float, limit: str) -> None:
        clashes = check(Timeouts(session=seconds(session), reset=seconds(2000)), static=False)
        assert pairs(clashes) == [("timeouts.session", f"the broker's group.{limit}.session.timeout.ms")]

    @pytest.mark.parametrize("session", [6, 1800])
    def test_a_session_at_the_brokers_limits_is_accepted(self, session: int) -> None:
        assert check(Timeouts(session=seconds(session), reset=seconds(2000)), static=False) == ()

    def test_the_brokers_limits_can_be_others(self) -> None:
        limits = BrokerLimits(shortest_session=seconds(1), longest_session=seconds(10))
        assert check(Timeouts(session=seconds(2)), static=False, limits=limits) == ()
        assert check(Timeouts(session=seconds(11)), static=False, limits=limits) != ()

    def test_a_session_that_outlasts_a_reset(self) -> None:
        clashes = check(Timeouts(session=seconds(300)), static=True)
        assert pairs(clashes) == [("timeouts.session", "timeouts.reset")]
        assert check(Timeouts(session=seconds(299)), static=True) == ()

    def test_a_derived_session_that_outlasts_a_reset_blames_the_relaunch(self) -> None:
        (clash,) = check(Timeouts(relaunch=seconds(250)), static=True)
        assert clash.other == "timeouts.reset"
        assert "timeouts.session is 300 s (1.2 x timeouts.relaunch)" in str(clash)
        assert "lower timeouts.relaunch" in str(clash)
        assert check(Timeouts(relaunch=seconds(250)), static=False) == ()

    def test_a_session_longer_than_the_poll_interval(self) -> None:
        clashes = check(Timeouts(session=seconds(150), max_poll=seconds(140)), static=False)
        assert ("timeouts.session", "timeouts.max_poll_interval") in pairs(clashes)

    def test_a_static_members_session_that_ends_before_its_relaunch(self) -> None:
        timeouts = Timeouts(session=seconds(100))
        assert pairs(check(timeouts, static=True)) == [("timeouts.session", "timeouts.relaunch")]
        assert check(timeouts, static=False) == ()

    def test_too_few_renewals_per_lease(self) -> None:
        clashes = check(Timeouts(renew=seconds(3.334)), static=True)
        assert pairs(clashes) == [("timeouts.renew", "timeouts.lease")]

    def test_a_lease_that_no_attempt_of_a_reset_outlasts(self) -> None:
        timeouts = Timeouts(lease=seconds(270), reset=seconds(300))
        assert pairs(check(timeouts, static=True)) == [("timeouts.lease", "timeouts.reset")]

    def test_a_batch_as_long_as_a_drain_unless_that_is_accepted(self) -> None:
        timeouts = Timeouts(batch=seconds(180))
        assert pairs(check(timeouts, static=True)) == [("batch.timeout", "timeouts.drain")]
        assert check(Timeouts(batch=seconds(180), accept_aborted_drain=True), static=True) == ()

    def test_are_all_reported_at_once_with_both_settings_and_both_values(self) -> None:
        timeouts = Timeouts(max_poll=seconds(100), batch=seconds(200))
        message = "\n".join(map(str, check(timeouts, static=True)))
        assert "timeouts.max_poll_interval is 100 s and timeouts.reset is 300 s" in message
        assert "batch.timeout is 200 s and timeouts.drain is 180 s" in message


class TestConsumerProtocol:
    def test_kafkas_defaults_clash_with_none_of_ours(self) -> None:
        assert check_consumer_protocol(Timeouts(), ConsumerProtocolTimes()) == ()

    def test_a_session_of_the_spec_may_be_the_groups_or_longer(self) -> None:
        for session in (45, 1000):
            assert check_consumer_protocol(Timeouts(session=seconds(session)), ConsumerProtocolTimes()) == ()

    @pytest.mark.parametrize(
        ("timeouts", "times", "pair"),
        [
            (
                Timeouts(session=seconds(44.9)),
                ConsumerProtocolTimes(),
                ("timeouts.session", "consumer.session.timeout.ms"),
            ),
            (
                Timeouts(reset=seconds(45)),
                ConsumerProtocolTimes(),
                ("consumer.session.timeout.ms", "timeouts.reset"),
            ),
            (
                Timeouts(),
                ConsumerProtocolTimes(heartbeat=seconds(2.1), session=seconds(6)),
                ("consumer.heartbeat.interval.ms", "consumer.session.timeout.ms"),
            ),
            (
                Timeouts(lease=seconds(5), renew=seconds(1)),
                ConsumerProtocolTimes(),
                ("consumer.heartbeat.interval.ms", "timeouts.lease"),
            ),
        ],
    )
    def test_each_contradiction_names_both_settings(
        self, timeouts: Timeouts, times: ConsumerProtocolTimes, pair: tuple[str, str]
    ) -> None:
        (clash,) = check_consumer_protocol(timeouts, times)
        assert (clash.setting, clash.other) == pair
        assert all(name in str(clash) for name in pair)

    def test_the_same_just_inside_is_accepted(self) -> None:
        assert check_consumer_protocol(Timeouts(reset=seconds(46)), ConsumerProtocolTimes()) == ()
        times = ConsumerProtocolTimes(heartbeat=seconds(2), session=seconds(6))
        assert check_consumer_protocol(Timeouts(), times) == ()
        assert check_consumer_protocol(Timeouts(lease=seconds(5.1)), ConsumerProtocolTimes()) == ()
