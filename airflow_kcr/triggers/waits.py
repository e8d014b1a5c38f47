"""The poller: one for all triggers of a process that wait at one store.

Two hundred deferred tasks with a connection each would be two hundred connections. So the triggers of a process share a
poller for each store: every `[kcr] poll_interval` it reads each region that a task waits for once, over one connection,
and resumes those whose wait is over. It begins with the first who waits and ends with the last.

Whatever blocks, the imports among it, is done in threads of the poller's own; the event loop, which all triggers of the
process run on, only keeps the books. What Kafka has to be asked for has a thread apart, so that a broker that does not
answer doesn't delay news from the store.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn, TypeAlias
from weakref import WeakKeyDictionary

from airflow.providers.common.compat.sdk import conf
from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_kcr.errors import KcrError
from airflow_kcr.goals import MembersEnded, WaitingFor
from airflow_kcr.hooks.kcr import KcrHook, RegionTask, translated
from airflow_kcr.protocol.values import format_instant, parse_instant, region_name
from airflow_kcr.triggers.drivers import SETTLED_WITHIN, ClusterDriver, cleaned, driver_ended, driver_from_json
from airflow_kcr.triggers.payloads import Status, TriggerAnswer, waiting_for_from_json

if TYPE_CHECKING:
    from datetime import datetime

    from sqlalchemy.engine import URL

    from airflow_kcr.protocol.region.rows import Requester
    from airflow_kcr.protocol.values import RegionName
    from airflow_kcr.triggers.probes import ProbeResult, StoreProbes

STORE_AWAY: Final = 30.0
"""Seconds for which the store may be away before that is the answer."""

KAFKA_INTERVAL: Final = 10.0
"""Seconds between two polls that ask Kafka; each opens its own client."""

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerWait:
    """What one trigger waits for, and for how long."""

    region: RegionName
    waiting_for: WaitingFor
    hook: KcrHook
    """By which Kafka is reached, where it has to be asked."""

    deadline: float
    """Seconds, counted from `asked_at`."""

    asked_at: datetime | None = None
    """The store's clock when the task began to wait; None: now. A triggerer that restarts continues from it."""


@dataclass(slots=True, eq=False)
class _Waiter:
    wait: TriggerWait
    ends_at: float
    answered: asyncio.Future[TriggerAnswer]
    missing: str = ""
    away_since: float | None = None
    is_dated: bool = False
    """Whether the store's clock has been compared with `asked_at`."""


_Found: TypeAlias = "Mapping[tuple[RegionName, WaitingFor], ProbeResult]"


@dataclass(slots=True, eq=False)
class _Lane:
    """Probes of one kind, in a thread of their own: one at a time, no sooner than an interval after the last one."""

    interval: float
    thread: ThreadPoolExecutor
    running: asyncio.Future[_Found] | None = None
    next_at: float = 0.0
    asks_kafka: bool = False


class Poller:
    """Probes one store for all who wait at it in one event loop; `Poller.at` finds it.

    Args:
        url: the store's, with its password.
        interval: how often it probes.
    """

    _known: ClassVar[WeakKeyDictionary[asyncio.AbstractEventLoop, dict[URL, Poller]]] = WeakKeyDictionary()

    def __init__(self, url: URL, interval: timedelta) -> None:
        self._url, self._interval = url, interval.total_seconds()
        self._waiters: set[_Waiter] = set()
        self._task: asyncio.Task[None] | None = None

    @classmethod
    def at(cls, url: URL, interval: timedelta) -> Poller:
        """Return the poller of a store in the running event loop; it is made with the first who asks."""
        pollers = cls._known.setdefault(asyncio.get_running_loop(), {})
        return pollers.setdefault(url, cls(url, interval))

    @property
    def waiting(self) -> int:
        """Number of waiters that share its probes."""
        return len(self._waiters)

    @property
    def is_running(self) -> bool:
        """Whether it probes, and holds a connection."""
        return self._task is not None

    async def wait(self, wait: TriggerWait) -> TriggerAnswer:
        """Return how a wait ended; a cancelled waiter just leaves.

        Raises:
            Exception: the poll itself failed, by a mistake in the code.
        """
        loop = asyncio.get_running_loop()
        waiter = _Waiter(wait=wait, ends_at=loop.time() + wait.deadline, answered=loop.create_future())
        self._waiters.add(waiter)
        if self._task is None:
            # In a context of its own: what is logged here belongs to no trigger, least of all to the first one.
            self._task = loop.create_task(self._poll(), name="kcr poller", context=contextvars.Context())
            self._task.add_done_callback(self._ended)
        try:
            return await waiter.answered
        finally:
            self._waiters.discard(waiter)

    # ------------------------------------------------------------------------------------------------------------

    async def _poll(self) -> None:
        loop = asyncio.get_running_loop()
        lanes = (
            _Lane(interval=self._interval, thread=_thread("kcr store")),
            _Lane(interval=max(self._interval, KAFKA_INTERVAL), thread=_thread("kcr kafka"), asks_kafka=True),
        )
        probes: StoreProbes | None = None
        try:
            probes = await loop.run_in_executor(lanes[0].thread, _open, self._url)
            while self._waiters:
                for lane in lanes:
                    self._begin(lane, probes, loop)
                running = [lane.running for lane in lanes if lane.running is not None]
                began = loop.time()
                if running:
                    await asyncio.wait(running, timeout=self._interval, return_when=asyncio.FIRST_COMPLETED)
                for lane in lanes:
                    self._collect(lane, loop.time())
                self._expire(loop.time())
                await asyncio.sleep(max(self._interval - (loop.time() - began), 0))
        finally:
            # Before anything is awaited: a later waiter starts another one.
            self._task = None
            for lane in lanes:
                if probes is not None and not lane.asks_kafka:
                    lane.thread.submit(probes.close)
                lane.thread.shutdown(wait=False)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Fail every waiter with the poller's error: a mistake in the code must not make them wait for ever."""
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        _LOG.error("the poller of a region store failed", exc_info=error)
        for waiter in self._waiters:
            if not waiter.answered.done():
                waiter.answered.set_exception(error)

    def _begin(self, lane: _Lane, probes: StoreProbes, loop: asyncio.AbstractEventLoop) -> None:
        """Begin the next poll of a lane, if it is time and a task waits for one."""
        if lane.running is not None or loop.time() < lane.next_at:
            return
        asked = [w.wait for w in self._waiters if w.wait.waiting_for.asks_kafka is lane.asks_kafka]
        if asked:
            lane.next_at = loop.time() + lane.interval
            lane.running = loop.run_in_executor(lane.thread, _probe, probes, asked)

    def _collect(self, lane: _Lane, now: float) -> None:
        """Tell the waiting tasks what a poll of a lane has found, if it is over."""
        if lane.running is None or not lane.running.done():
            return
        found, lane.running = lane.running.result(), None
        for waiter in self._waiters:
            finding = found.get((waiter.wait.region, waiter.wait.waiting_for))
            if finding is not None:
                _tell(waiter, finding, now)

    def _expire(self, now: float) -> None:
        for waiter in self._waiters:
            if now >= waiter.ends_at:
                what = waiter.missing or f"waiting for region {waiter.wait.region}"
                detail = (
                    f"gave up after {waiter.wait.deadline:g} s {what}; nothing was undone, it may be waited for again"
                )
                _answer(waiter, TriggerAnswer(status=Status.TIMED_OUT, detail=detail))


def _tell(waiter: _Waiter, finding: ProbeResult, now: float) -> None:
    waiter.missing = finding.missing
    if finding.now is None and finding.answer is None:
        waiter.away_since = now if waiter.away_since is None else waiter.away_since
        if now - waiter.away_since >= STORE_AWAY:
            _answer(waiter, TriggerAnswer(status=Status.STORE_AWAY, detail=finding.missing))
        return
    waiter.away_since = None
    if finding.now is not None and not waiter.is_dated:
        waiter.is_dated = True
        if waiter.wait.asked_at is not None:
            waited = max((finding.now - waiter.wait.asked_at).total_seconds(), 0)
            waiter.ends_at = min(waiter.ends_at, now + waiter.wait.deadline - waited)
    if finding.answer is not None:
        _answer(waiter, finding.answer)


def _answer(waiter: _Waiter, answer: TriggerAnswer) -> None:
    if not waiter.answered.done():
        waiter.answered.set_result(answer)


def _thread(name: str) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)


# -- in a thread -------------------------------------------------------------------------------------------------------


def _open(url: URL) -> StoreProbes:
    # Here, because it imports the store and its driver, which takes longer than a loop may stand still.
    from airflow_kcr.triggers.probes import StoreProbes

    return StoreProbes(url)


def ask_last(url: URL | str, region: str, request_id: str, requester: Requester | None = None) -> None:
    """Ask for the last checkpoint of a task that was killed, or find it asked for.

    Args:
        url: the store's.
        region: the region's name.
        request_id: names the checkpoint, for the driver too.
        requester: who asks; None: Airflow.

    Raises:
        KcrError: the store is away, or the region refuses.
    """
    from airflow_kcr.api.regions import opened
    from airflow_kcr.driver.parent_watchdog import ask
    from airflow_kcr.protocol.region.rows import Requester
    from airflow_kcr.protocol.values import RequestId

    killed = requester or Requester(who="airflow", reason="the task was killed")
    with opened(url) as store:
        ask(store, region_name(region), RequestId(request_id), killed)


def _probe(probes: StoreProbes, waits: Collection[TriggerWait]) -> _Found:
    regions: dict[RegionName, dict[WaitingFor, KcrHook]] = defaultdict(dict)
    for wait in waits:
        regions[wait.region][wait.waiting_for] = wait.hook
    if not waits or not next(iter(waits)).waiting_for.asks_kafka:
        return probes.probe_all(regions)
    found: dict[tuple[RegionName, WaitingFor], ProbeResult] = {}
    for region, wanted in regions.items():
        seen = probes.probe(region, wanted, next(iter(wanted.values())))
        found |= {(region, each): finding for each, finding in seen.items()}
        away = next((f for f in seen.values() if f.now is None and f.answer is None), None)
        if away is not None:
            # For all: each region would take as long again to find it out.
            return {(wait.region, wait.waiting_for): away for wait in waits} | found
    return found


DEFAULT_INTERVAL: Final = 1.0
"""Seconds between two probes, where `[kcr] poll_interval` does not say."""

SHORTEST_INTERVAL: Final = 0.05
"""Less would keep a processor and the store busy with polling."""


RETRIES: Final = 3
RETRY_DELAY: Final = timedelta(seconds=10)
"""What tasks that wait have unless their author says otherwise. Airflow 3.3 fails a deferred task now and then whose
trigger has fired before a busy scheduler has heard that the task gave its slot up (its issues 71580 and 72716); and
whatever waits here may be tried again: it asks under the same name."""


BACKSTOP: Final = timedelta(seconds=60)
"""How much later than the trigger Airflow itself gives up: this counts only if no triggerer runs."""


class WaitingTask(RegionTask):
    """A task of one region that gives its slot up while it waits."""

    def at_most(self, longest: timedelta) -> timedelta:
        """Return how long to wait; a shorter `execution_timeout` counts, which Airflow applies to no deferred task."""
        return longest if self.execution_timeout is None else min(longest, self.execution_timeout)

    def give_up_slot(
        self,
        waiting_for: WaitingFor,
        longest: timedelta,
        *,
        then: str = "resume",
        since: datetime | None = None,
        kept: Mapping[str, object] | None = None,
        driver: ClusterDriver | None = None,
    ) -> NoReturn:
        """Go on in a method once a region is what is waited for, or that is over otherwise.

        Args:
            waiting_for: what for.
            longest: how long, as for `at_most`.
            then: the method; it is given the trigger's event.
            since: the store's clock when the task began to wait; None: that counts from the trigger's start.
            kept: what the method is given beside the event, as JSON.
            driver: the driver in a cluster that the region's members are in, where it is known.
        """
        deadline = self.at_most(longest)
        self.defer(
            trigger=RegionTrigger(
                kcr_conn_id=self.kcr_conn_id,
                region=self.region,
                waiting_for=waiting_for.to_json(),
                deadline=deadline.total_seconds(),
                asked_at="" if since is None else format_instant(since),
                driver=None if driver is None else asdict(driver),
            ),
            method_name=then,
            kwargs=dict(kept) if kept else None,
            timeout=deadline + BACKSTOP,
        )

    def require_reached(self, event: Mapping[str, object]) -> None:
        """Return if what was waited for was reached, by the trigger's event.

        Raises:
            AirflowFailException: it can't be reached; a retry can't help.
            AirflowException: it was not reached in time, or the store was away.
        """
        with translated():
            TriggerAnswer.from_json(event).require_reached()


class RegionTrigger(BaseTrigger):
    """Waits until a region is what a task waits for, and says how that ended: one event, `payloads.TriggerAnswer`.

    It changes nothing but what is due anyway, so it may run twice, or again in another triggerer. When its task is
    killed, what was asked of the region stays asked. A checkpoint that no task waits for does no harm, and a cleared
    task asks under the same name in the moment in which the old one is cancelled; to withdraw the request then would
    withdraw the new one's. Only an application that the task has started in a cluster is told to end.

    Args:
        kcr_conn_id: the store's connection.
        region: the region's name.
        waiting_for: its `to_json`.
        deadline: seconds after which it gives up, counted from `asked_at`.
        asked_at: the store's clock when the task began to wait, as ISO 8601; empty: when the trigger starts.
        driver: the fields of the `ClusterDriver`, whose end is an answer too; None: it is not known, or there is none.
    """

    def __init__(
        self,
        *,
        kcr_conn_id: str,
        region: str,
        waiting_for: Mapping[str, Any],
        deadline: float,
        asked_at: str = "",
        driver: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # Airflow's
        self.kcr_conn_id = kcr_conn_id
        self.region = region
        self.waiting_for = dict(waiting_for)
        self.deadline = deadline
        self.asked_at = asked_at
        self.driver = driver

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return what the trigger is recreated from."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "kcr_conn_id": self.kcr_conn_id,
                "region": self.region,
                "waiting_for": self.waiting_for,
                "deadline": self.deadline,
                "asked_at": self.asked_at,
                "driver": self.driver,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait, and yield one event that says how it ended."""
        try:
            answer = await self._answer()
        except KcrError as error:
            answer = TriggerAnswer(status=Status.REFUSED, detail=error.message)
        yield TriggerEvent(answer.to_json())  # type: ignore[no-untyped-call] # Airflow's

    async def on_kill(self) -> None:
        """Have the application in the cluster drain and end, as its task was cleared or marked; it is not waited for.

        A restarted triggerer doesn't call this.
        """
        waiting_for = waiting_for_from_json(self.waiting_for)
        if not isinstance(waiting_for, MembersEnded) or not waiting_for.last_request:
            return
        try:
            url = await KcrHook(self.kcr_conn_id).astore_url()
            await asyncio.to_thread(ask_last, url, self.region, waiting_for.last_request)
        except KcrError as error:
            self.log.warning(
                "the application in the cluster was not told to end: %s; if no other try takes its members over, end "
                "it in the cluster",
                error.message,
            )
        else:
            self.log.info("the application in the cluster was told to drain and end")

    async def _answer(self) -> TriggerAnswer:
        hook = KcrHook(self.kcr_conn_id)
        wait = TriggerWait(
            region=region_name(self.region),
            waiting_for=waiting_for_from_json(self.waiting_for),
            hook=hook,
            deadline=self.deadline,
            asked_at=parse_instant(self.asked_at) if self.asked_at else None,
        )
        interval = max(conf.getfloat("kcr", "poll_interval", fallback=DEFAULT_INTERVAL), SHORTEST_INTERVAL)
        region = Poller.at(await hook.astore_url(), timedelta(seconds=interval)).wait(wait)
        return await (region if self.driver is None else self._first(region, driver_from_json(self.driver)))

    async def _first(self, region: Coroutine[Any, Any, TriggerAnswer], driver: ClusterDriver) -> TriggerAnswer:
        """Return the region's answer, or that of its driver where the region has none by then."""
        reached = asyncio.ensure_future(region)
        ended = asyncio.ensure_future(driver_ended(driver, self.log.warning))
        try:
            await asyncio.wait({reached, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not reached.done():
                await asyncio.wait({reached}, timeout=SETTLED_WITHIN)
            answer = (reached if reached.done() else ended).result()
        finally:
            reached.cancel()
            ended.cancel()
        if answer.status is Status.REACHED:
            await cleaned(driver, self.log.warning)
        return answer
