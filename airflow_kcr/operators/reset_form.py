"""The form of a reset: the params that Airflow asks for when its DAG is triggered, and what an answer means.

Airflow checks each field by itself, before there is a run: a partition that is no number is refused in the form. What
a value has to be depends on the target, which Airflow can't check; the first task does, before it asks the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import pendulum
from airflow.sdk import Param, conf

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.protocol.targets import TargetKind, parse_target
from airflow_kcr.protocol.times import format_instant

if TYPE_CHECKING:
    from datetime import datetime, tzinfo

CHOOSE_LATER: Final = "choose"
"""What the form has for a target if none was named: the next task shows the checkpoints."""

VALUES: Final = {
    TargetKind.TO_CHECKPOINT: "the sequence of a checkpoint, such as 12",
    TargetKind.TO_RUN: "DAG/RUN, such as flights_checkpoint/scheduled__2026-01-01T10:00:00+00:00",
    TargetKind.TO_DATETIME: "a past time, such as 2026-01-01T10:00",
    TargetKind.BY_DURATION: "a time back from now, such as 6h",
    TargetKind.SHIFT_BY: "a number of offsets, negative to go back, such as -100",
    TargetKind.TO_OFFSET: "an offset, such as 1000",
    TargetKind.FROM_FILE: "lines of GROUP,TOPIC,PARTITION,OFFSET, as kcr reset plan -o csv prints them",
}
"""What the value of a target is; those that are not here have none."""

MEANINGS: Final = {
    TargetKind.TO_CHECKPOINT: "a checkpoint",
    TargetKind.TO_INITIAL: "where the region first started",
    TargetKind.TO_RUN: "the checkpoint of a DAG run",
    TargetKind.TO_EARLIEST: "the start of each log",
    TargetKind.TO_LATEST: "the end of each log",
    TargetKind.TO_DATETIME: "the first record since a time",
    TargetKind.BY_DURATION: "back in time from now",
    TargetKind.SHIFT_BY: "forward or back by a number of offsets",
    TargetKind.TO_OFFSET: "one offset for every partition",
    TargetKind.TO_CURRENT: "the present positions: nothing moves",
    TargetKind.FROM_FILE: "the offsets of a reset CSV",
}


def reset_params(groups: Sequence[str] = (), *, consent_upsert: bool = False) -> dict[str, Param]:
    """Return the fields of the form, as params of a DAG; leaving all of them empty means choosing a checkpoint.

    Args:
        groups: the region's, to choose from; none: they are written.
        consent_upsert: whether consent is given by default; the form can take it back.
    """
    labels = {
        CHOOSE_LATER: "a checkpoint, chosen from a list in the next step",
        **{str(kind): _label(kind) for kind in TargetKind},
    }
    lists = ["array", "null"]
    return {
        "target": Param(
            CHOOSE_LATER,
            type="string",
            enum=list(labels),
            values_display=labels,
            title="Target",
            description="Where to.",
        ),
        "value": Param(
            None,
            type=["string", "null"],
            format="multiline",
            title="Value",
            description=f"What the target names: {'; '.join(f'{kind}: {what}' for kind, what in VALUES.items())}. "
            f"A time without a zone is in {zone_name()}.",
        ),
        "groups": Param(
            None,
            type=lists,
            items={"type": "string", "minLength": 1},
            title="Groups",
            description="Only these groups; empty: all.",
            examples=list(groups),
        ),
        "topics": Param(
            None,
            type=lists,
            items={"type": "string", "pattern": r"^[^:\s]+(:\d+(,\d+)*)?$"},
            title="Topics and partitions",
            description="Only these topics, or partitions of them, as TOPIC or TOPIC:0,1; one a line; empty: all.",
        ),
        "skip": Param(
            None,
            type=lists,
            items={"type": "string", "pattern": r"^[^:\s]+:\d+:\d+$"},
            title="Records to skip",
            description="Records that are never processed, as TOPIC:PARTITION:OFFSET; one a line.",
        ),
        "forward": Param(
            False,
            type="boolean",
            title="Forward",
            description="Allow a checkpoint of another timeline; the records in between are skipped.",
        ),
        "allow_partial": Param(
            False,
            type="boolean",
            title="Allow partial",
            description="Allow an incomplete checkpoint; the plan fills its gaps and marks them.",
        ),
        "force": Param(
            False,
            type="boolean",
            title="Force",
            description="Don't drain first, the only way from a halted or starting region; consumers in the groups "
            "are then not checked.",
        ),
        "consent_upsert": Param(
            consent_upsert,
            type="boolean",
            title="Consent to upsert",
            description="Accept that the tables of mode upsert that the plan names can't be restored.",
        ),
        "reason": Param(
            None, type=["string", "null"], title="Reason", description="Why; others find it in the history."
        ),
    }


def _label(kind: TargetKind) -> str:
    return f"{kind}: {MEANINGS[kind]}"


def target_of(target: object, value: object) -> tuple[str, str | None] | None:
    """Return the option of `kcr reset plan` that an answer names, and its value; None: a checkpoint is chosen later.

    Args:
        target: the name of a target, `choose` or nothing.
        value: its value; nothing if it has none.

    Raises:
        ConfigurationError: there is no such target, or the value is none of it; the message says what it has to be.
    """
    text = None if value is None or not str(value).strip() else str(value).strip()
    if target in (None, "", CHOOSE_LATER):
        if text is not None:
            raise ConfigurationError(
                f"the value {text!r:.60} belongs to no target; trigger the DAG again, with the target that it is of "
                f"({', '.join(VALUES)}), or without a value"
            )
        return None
    kind = str(target).replace("_", "-")
    try:
        if kind == TargetKind.TO_DATETIME and text is not None:
            from airflow_kcr.api.reset_plans import local_instant

            return kind, format_instant(local_instant(text, zone_name()))
        if kind != TargetKind.FROM_FILE or text is None:
            parse_target(kind, text)
    except ConfigurationError as error:
        known = next((one for one in TargetKind if one == kind), None)
        wanted = f"one of {', '.join(TargetKind)}" if known is None else VALUES.get(known, "no value")
        raise ConfigurationError(f"{error.message}. Nothing was reset; trigger the DAG again, with {wanted}") from None
    return kind, text


def truth(answer: object, name: str) -> bool:
    """Return a yes or no, also where a template has made a text of it.

    Args:
        answer: what was given.
        name: the argument, for messages.

    Raises:
        ConfigurationError: it is neither.
    """
    match str(answer).strip().lower():
        case "true":
            return True
        case "false" | "none" | "":
            return False
    raise ConfigurationError(f"{name} is true or false, not {answer!r:.60}")


# Times, in Airflow's default zone: a task doesn't know which zone a browser shows.


def zone_name() -> str:
    """Return the name of the time zone of Airflow, `[core] default_timezone`."""
    name = conf.get("core", "default_timezone", fallback="utc") or "utc"
    if name == "system":
        return str(pendulum.now().timezone_name)
    return "UTC" if name.lower() == "utc" else name


def shown(moment: datetime) -> str:
    """Return an instant as a person reads it, with its zone."""
    # It brings croniter, which only a task that runs needs.
    from airflow_kcr.schedules import zone_named

    zone: tzinfo = zone_named(zone_name())
    return f"{moment.astimezone(zone):%Y-%m-%d %H:%M:%S %Z}"
