"""Events as JSON, and in a line for people."""

from __future__ import annotations

import json
from typing import cast

from airflow_kcr.api.views import instant
from airflow_kcr.protocol.region.events import Event
from airflow_kcr.store.codec import to_json


def event_to_json(event: Event) -> dict[str, object]:
    """Return an event as in `events`; its body as it is stored, what is at its default left out."""
    return {
        "number": event.number,
        "at": instant(event.at),
        "epoch": event.epoch,
        "timeline": event.timeline,
        "kind": event.kind,
        "body": _body(event),
    }


def brief(event: Event, width: int) -> str:
    """Return what an event says in at most so many characters; the whole is in its JSON."""
    texts = (f"{name}={_text(value)}" for name, value in _body(event).items())
    text = " ".join(texts)
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _body(event: Event) -> dict[str, object]:
    return cast("dict[str, object]", to_json(event.body, type(event.body)))


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
