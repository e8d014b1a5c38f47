"""An HTTP endpoint for OpenLineage events that refuses what the specification does not allow."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from jsonschema import Draft202012Validator, FormatChecker

FACETS: Final[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "docs" / "reference" / "schemas" / "lineage.json").read_text(encoding="utf-8")
)["$defs"]
"""The schemas of this project's facets, as the reference publishes them."""

_FACET: Final = {
    "type": "object",
    "properties": {name: {"type": "string", "pattern": "^[a-z]+:.+"} for name in ("_producer", "_schemaURL")},
    "required": ["_producer", "_schemaURL"],
}
_DATASETS: Final = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "namespace": {"type": "string"},
            "name": {"type": "string"},
            "facets": {"type": "object", "additionalProperties": _FACET},
        },
        "required": ["namespace", "name"],
    },
}
EVENT: Final = {
    "type": "object",
    "properties": {
        "eventType": {"enum": ["START", "RUNNING", "COMPLETE", "ABORT", "FAIL", "OTHER"]},
        "eventTime": {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)$"},
        "producer": {"type": "string", "pattern": "^[a-z]+:.+"},
        "schemaURL": {"type": "string", "pattern": "^https://openlineage.io/spec/.+"},
        "run": {
            "type": "object",
            "properties": {
                "runId": {"type": "string", "format": "uuid"},
                "facets": {
                    "type": "object",
                    "properties": {
                        "kcr_checkpoint": FACETS["KcrCheckpointRunFacet"],
                        "kcr_reset": FACETS["KcrResetRunFacet"],
                    },
                    "additionalProperties": _FACET,
                },
            },
            "required": ["runId"],
        },
        "job": {
            "type": "object",
            "properties": {
                "namespace": {"type": "string"},
                "name": {"type": "string"},
                "facets": {"type": "object", "additionalProperties": _FACET},
            },
            "required": ["namespace", "name"],
        },
        "inputs": _DATASETS,
        "outputs": _DATASETS,
    },
    "required": ["eventTime", "producer", "schemaURL", "run", "job"],
}
"""What the specification demands of a run event, as far as this project sends them."""


class LineageReceiver(ThreadingHTTPServer):
    """Keeps the events that it is sent, on a free port of this machine.

    Args:
        hangs: whether it takes events and never answers.
    """

    daemon_threads = True

    def __init__(self, *, hangs: bool = False) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.hangs = hangs
        self.is_over, self.reached = threading.Event(), threading.Event()
        self.received: list[dict[str, Any]] = []
        self.refused: list[str] = []

    @property
    def url(self) -> str:
        """Where events go to."""
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Request(BaseHTTPRequestHandler):
    server: LineageReceiver

    def do_POST(self) -> None:
        """Take an event."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.server.hangs:
            self.server.reached.set()
            self.server.is_over.wait()
            return
        event = json.loads(body)
        wrong = [one.message for one in Draft202012Validator(EVENT, format_checker=FormatChecker()).iter_errors(event)]
        self.server.refused += wrong
        if not wrong:
            self.server.received.append(event)
        self.server.reached.set()
        self.send_response(422 if wrong else 201)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (as the original)
        """Say nothing."""


@contextmanager
def lineage_receiver(*, hangs: bool = False) -> Iterator[LineageReceiver]:
    """Lend an endpoint."""
    server = LineageReceiver(hangs=hangs)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.is_over.set()
        server.shutdown()
        server.server_close()
        thread.join()
