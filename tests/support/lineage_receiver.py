"""An HTTP endpoint for OpenLineage events that refuses what the specification does not allow."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any, Final

from jsonschema import Draft202012Validator, FormatChecker

from tests.support.endpoint import Answer, Endpoint, Request

FACETS: Final[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "docs" / "reference" / "schemas" / "lineage.json").read_text(encoding="utf-8")
)["$defs"]
"""The schemas of this project's facets, as the reference publishes them."""

_FACET: Final = {
    "type": "object",
    "properties": {name: {"type": "string", "pattern": "^[a-z]+:.+"} for name in ("_producer", "_schemaURL")},
    "required": ["_producer", "_schemaURL"],
}
_NAMED: Final = {
    "type": "object",
    "properties": {
        "namespace": {"type": "string"},
        "name": {"type": "string"},
        "facets": {"type": "object", "additionalProperties": _FACET},
    },
    "required": ["namespace", "name"],
}
_DATASETS: Final = {"type": "array", "items": _NAMED}
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
        "job": _NAMED,
        "inputs": _DATASETS,
        "outputs": _DATASETS,
    },
    "required": ["eventTime", "producer", "schemaURL", "run", "job"],
}
"""What the specification demands of a run event, as far as this project sends them."""


class LineageReceiver(Endpoint):
    """Keeps the events that it is sent.

    Args:
        hangs: whether it takes events and never answers.
    """

    def __init__(self, *, hangs: bool = False) -> None:
        super().__init__(self._take)
        self.hangs = hangs
        self.reached = threading.Event()
        self.received: list[dict[str, Any]] = []
        self.refused: list[str] = []

    def _take(self, request: Request) -> Answer | None:
        if self.hangs:
            self.reached.set()
            return None
        event = json.loads(request.body)
        wrong = [one.message for one in Draft202012Validator(EVENT, format_checker=FormatChecker()).iter_errors(event)]
        self.refused += wrong
        if not wrong:
            self.received.append(event)
        self.reached.set()
        return Answer(422 if wrong else 201)
