"""What watchers of a region remember, in Postgres: a row for each watcher, its memory as one document."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Final, TypeVar

from airflow_kcr.protocol import documents
from airflow_kcr.protocol.region.incidents import WatcherMemory
from airflow_kcr.store.codec import from_json
from airflow_kcr.store.postgres.session import Session
from airflow_kcr.store.postgres.statements import load

A = TypeVar("A")

SQL: Final = load("watchers")


def remember(
    session: Session, watcher: str, now: datetime, rule: Callable[[WatcherMemory, datetime], tuple[WatcherMemory, A]]
) -> A:
    """Run a rule on a watcher's memory, whose row is locked until the transaction ends, and write what it returns."""
    session.run(SQL["add"], watcher=watcher, body=_text(WatcherMemory(since=now)))
    ((body,),) = session.rows(SQL["held"], watcher=watcher)
    memory, answer = rule(from_json(body, WatcherMemory), now)
    session.run(SQL["change"], watcher=watcher, body=_text(memory))
    return answer


def _text(memory: WatcherMemory) -> str:
    return json.dumps(documents.write(memory, WatcherMemory), ensure_ascii=False)
