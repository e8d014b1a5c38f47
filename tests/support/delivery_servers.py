"""The servers that tests of delivery kill, and where what they have found is kept."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from airflow_kcr.embedded.processes import happened
from airflow_kcr.store.schema_upgrade import upgrade
from tests.support.delivery_faults import Row
from tests.support.faults import Note, passed
from tests.support.kafka import KafkaSet
from tests.support.tied import Postgres, start_postgres

ROWS = "KCR_FAULT_TABLE"
"""The environment variable with the file that rows are added to."""

BEYOND_A_LEASE = 6.0
"""Seconds that both databases are away in an outage; leases are of 4 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """What can be killed: the store's Postgres and the table's."""

    store: Postgres
    target: Postgres


@contextmanager
def two_servers(folder: Path) -> Iterator[Servers]:
    """Lend two servers, the store's with its schema."""
    with start_postgres(folder / "store") as store, start_postgres(folder / "target") as target:
        upgrade(store.url())
        yield Servers(store=store, target=target)


def killing(fault: str, servers: Servers, kafka: KafkaSet) -> Callable[[], None] | None:
    """What kills a service and starts it again; None where a process of a member is meant.

    Args:
        fault: `store`, `target` or `broker`: killed and started at once; `outage`: both databases, for a while.
        servers: the databases.
        kafka: the broker.
    """

    def broker() -> None:
        kafka.broker(1).kill()
        kafka.broker(1).start()

    def database(server: Postgres) -> Callable[[], None]:
        def killed() -> None:
            server.kill()
            server.start()

        return killed

    def outage() -> None:
        servers.store.kill()
        servers.target.kill()
        happened(passed(BEYOND_A_LEASE), within=2 * BEYOND_A_LEASE)
        servers.target.start()
        servers.store.start()

    store, target = database(servers.store), database(servers.target)
    return {"store": store, "target": target, "outage": outage, "broker": broker}.get(fault)


def noted(rows: Sequence[Row], note: Note) -> None:
    """Keep what combinations have done."""
    for row in rows:
        note(f"{row.delivery} {row.fault} {row.step}", str(row))
    if ROWS in os.environ:
        with Path(os.environ[ROWS]).open("a") as out:
            out.writelines(f"{row}\n" for row in rows)
