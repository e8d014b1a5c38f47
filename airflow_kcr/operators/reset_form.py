"""The form of a reset, what an answer to it means, and what the tasks of its DAG hand to one another.

Airflow checks each field by itself, before there is a run, so the schema of a field refuses what can be no value of its
target. It can't check one field against another: a value that is left empty is asked for by the first task, and a value
of another target fails it, before it asks the store.

Choice, plan and approval are small JSON, as XComs are. A plan travels as its summary: the request, the epoch, the sums
and the twenty worst partitions. The store keeps no plan, and a thousand lines don't belong in an XCom; applying
resolves the request again anyway, and `kcr reset plan` shows the whole plan.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import Param
from airflow.sdk.definitions.param import ParamsDict

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.operators import reset_texts
from airflow_kcr.protocol.targets import TARGETS, FromFile, Target, ToCheckpoint, target_named

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context

    from airflow_kcr.api import Plan

STALE: Final = "stale"
"""In what an approval returns, why its plan could not be applied any more; only where a task plans again."""

AGAIN: Final = "Nothing was reset; trigger the DAG again"
"""What helps where an answer can't be used, or the region has changed since the question.

To clear the task does not: Airflow 3.3 shows the old text again.
"""

VALUED: Final = tuple(one for one in TARGETS if one.metavar)
"""The targets that have a value, and a field for it."""

SCOPE: Final = "Scope and exceptions"
"""The section of the form with what most resets leave as it is."""


def reset_params(groups: Sequence[str] = (), *, consent_upsert: bool = False) -> dict[str, Param]:
    """Return the fields of the form, as params of a DAG; leaving all of them empty means choosing a checkpoint.

    Args:
        groups: the region's, to choose from; none: they are written.
        consent_upsert: whether consent is given by default; the form can take it back.
    """
    lists = ["array", "null"]
    return {
        "target": Param(
            ToCheckpoint.option,
            type="string",
            enum=[one.option for one in TARGETS],
            values_display={one.option: one.label for one in TARGETS},
            title="Target",
            description="Where to; fill in the field of this target, or leave it empty to be asked in the next step.",
        ),
        **{one.form_field: _field_of(one) for one in VALUED},
        "reason": Param(
            None,
            type=["string", "null"],
            title="Reason",
            description="Why; others find it in the history. Empty: the approver gives it.",
        ),
        "groups": Param(
            None,
            type=lists,
            items={"type": "string", "minLength": 1},
            title="Groups",
            description="Only these groups. Empty: all.",
            examples=list(groups),
            section=SCOPE,
        ),
        "topics": Param(
            None,
            type=lists,
            items={"type": "string", "pattern": r"^[^:\s]+(:\d+(,\d+)*)?$"},
            title="Topics and partitions",
            description="Only these, one a line, such as flights or flights:0,1. Empty: all.",
            section=SCOPE,
        ),
        "skip": Param(
            None,
            type=lists,
            items={"type": "string", "pattern": r"^[^:\s]+:\d+:\d+$"},
            title="Records to skip",
            description="Never processed; one a line, such as flights:0:1042 (partition, offset). Empty: none.",
            section=SCOPE,
        ),
        "forward": _switch("Forward", "Allow a checkpoint of another timeline; the records in between are skipped."),
        "allow_partial": _switch(
            "Allow partial", "Allow an incomplete checkpoint; the plan fills its gaps and marks them."
        ),
        "force": _switch("Force", "Don't drain first: the only way from a halted or starting region."),
        "consent_upsert": _switch(
            "Consent to upsert",
            "Accept that the tables of mode upsert that the plan names can't be restored.",
            default=consent_upsert,
        ),
    }


def _field_of(target: type[Target], *, is_optional: bool = True) -> Param:
    """Return the field for the value of a target; of one that is not optional, it has to be filled in."""
    what = f"{target.wanted[0].upper()}{target.wanted[1:]}."
    schema: dict[str, Any] = dict(target.schema)
    if is_optional:
        schema["type"], what = [schema["type"], "null"], f"For “{target.label}”. {what}"
    return Param(None, title=target.form_field.capitalize(), description=what, **schema)


def _switch(title: str, description: str, *, default: bool = False) -> Param:
    return Param(default, type="boolean", title=title, description=description, section=SCOPE)


def reason_param(reason: object) -> Param:
    """Return the field for why, in the forms of the tasks that ask a person.

    Args:
        reason: why, as far as it was said before.
    """
    return Param(reason or None, type=["null", "string"], title="Reason", description="Others find it in the history.")


def value_param(target: type[Target]) -> Param:
    """Return the field that asks for the value of a target; it has to be filled in."""
    return _field_of(target, is_optional=False)


def target_of(target: object, values: Mapping[str, object]) -> tuple[type[Target], str | None]:
    """Return the target that an answer names, and its value; None: it has none, or it is still to be asked for.

    Args:
        target: the name of a target; nothing: a checkpoint.
        values: what the fields of values hold, by their names; nothing in those that were left empty.

    Raises:
        ConfigurationError: there is no such target, a value is of another one, or is none of it; the message says what
            it has to be.
    """
    given = {name: said for name, value in values.items() if (said := _text(value))}
    try:
        kind = target_named(_text(target).replace("_", "-") or ToCheckpoint.option)
        strange = sorted(given.keys() - {kind.form_field})
        if strange:
            raise ConfigurationError(f"{kind.option} does not take {' and '.join(strange)}, of another target")
    except ConfigurationError as error:
        named = ", ".join(f"{one.option} ({one.form_field})" if one.metavar else one.option for one in TARGETS)
        raise ConfigurationError(f"{error.message}. {AGAIN}, with one of {named}") from None
    text = given.get(kind.form_field)
    return kind, None if text is None else value_of(kind, text)


def value_of(target: type[Target], given: object) -> str:
    """Return the text of a target's value, as `kcr reset plan` takes it.

    Raises:
        ConfigurationError: it is none of this target; the message says what it has to be.
    """
    text = _text(given)
    if target is FromFile and text:
        return text  # read where the region's partitions are known
    from airflow_kcr.api.reset_plans import read_target

    try:
        return read_target(target.option, text or None, reset_texts.zone_name()).value
    except ConfigurationError as error:
        raise ConfigurationError(f"{error.message}. {AGAIN}, with {target.wanted}") from None


def _text(given: object) -> str:
    return "" if given is None else str(given).strip()


def texts(given: object, name: str) -> Sequence[str]:
    """Return a list of texts; nothing is an empty one."""
    match given:
        case None:
            return ()
        case list() | tuple() if all(isinstance(one, str) for one in given):
            return given
        case _:
            raise ConfigurationError(f"{name} is a list of texts, not {given!r:.60}")


def option_of(target: str | Mapping[str, object] | None, choice: Mapping[str, object]) -> tuple[str, str | None]:
    """Return the name of a target's option and the text of its value."""
    match target:
        case None:
            if "target" not in choice:
                raise ConfigurationError("the task before has chosen no target; say it here, or add such a task")
            value = choice.get("value")
            return str(choice["target"]), None if value is None else str(value)
        case str():
            return target.replace("_", "-"), None
        case Mapping():
            if len(target) != 1:
                raise ConfigurationError(f"a target is one option with its value, not {len(target)}: {sorted(target)}")
            [(kind, value)] = target.items()
            return kind.replace("_", "-"), None if value in (None, True) else str(value)
        case _:
            raise ConfigurationError(f"a target is text or a mapping, not {type(target).__name__}")


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


def given(operator: BaseOperator, context: Context, value: object, argument: str) -> Mapping[str, object]:
    """Return an argument that is the result of another task; by default of the only one right before this task.

    Of several tasks right before it, one may have a result: the others were skipped, or their plan was stale.

    Args:
        operator: whose argument it is.
        context: of its task.
        value: the argument as it was rendered; None: it was left out.
        argument: its name, for messages.

    Raises:
        ConfigurationError: there is no such result, or it is no JSON object.
    """
    if value is None:
        pull: Any = context["ti"].xcom_pull
        before = sorted(operator.upstream_task_ids)
        found = [(name, pulled) for name in before if (pulled := pull(task_ids=name)) is not None]
        if len(before) > 1:
            found = [(name, pulled) for name, pulled in found if not _mapping(pulled).get(STALE)]
        if not before or len(found) > 1:
            raise ConfigurationError(
                f"task {operator.task_id}: say where its {argument} comes from, as {argument}=OTHER_TASK.output; only "
                f"behind exactly one other task with a result it may be left out (there are {len(found)})"
            )
        if not found:
            raise ConfigurationError(
                f"task {' or '.join(before)} has returned nothing that task {operator.task_id} could take"
            )
        [(_, value)] = found
    if isinstance(value, str):
        value = _parsed(value, operator.task_id, argument)
    if isinstance(value, Mapping):
        return value
    raise ConfigurationError(f"task {operator.task_id}: {argument} is a JSON object, not {type(value).__name__}")


def _parsed(text: str, task_id: str, argument: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        raise ConfigurationError(
            f"task {task_id}: {argument} is no JSON; hand it over as {argument}=OTHER_TASK.output, which a template in "
            "quotes would turn into text"
        ) from None


def planned(document: Mapping[str, object]) -> Plan:
    """Return the plan that the task of a plan, or of its approval, has returned.

    Raises:
        ConfigurationError: it is none.
    """
    from airflow_kcr.api import Plan

    inner = document.get("plan")
    return Plan.from_json(inner if isinstance(inner, Mapping) else document)


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def responder(event: Mapping[str, Any]) -> str:
    """Return who has answered a task that waited for a person; empty: Airflow does not say."""
    found = _mapping(event.get("responded_by_user"))
    return str(found.get("name") or found.get("id") or "")


def asking(operator: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a task that asks a person: without a default answer, and asking again where it was lost.

    For some seconds after a task has asked, until its process is gone, Airflow 3.3 takes one that is answered already
    for lost. With a retry left the question is asked once more; without, the run would fail by a quick click.

    Args:
        operator: its class, for messages.
        arguments: as the author gave them; what they say of retries counts.

    Raises:
        ConfigurationError: there is a default answer: a reset is a person's decision.
    """
    if arguments.get("defaults") is not None:
        raise ConfigurationError(f"{operator} takes no defaults: without an answer in time, nothing may be reset")
    return {"retries": 2, "retry_delay": timedelta(seconds=1), **arguments}


@contextmanager
def answered(operator: BaseOperator) -> Iterator[None]:
    """Run what reads an answer; a missing answer is no reason to ask again.

    Args:
        operator: whose question it is.

    Raises:
        AirflowFailException: there is none.
    """
    from airflow.providers.common.compat.sdk import AirflowFailException
    from airflow.providers.standard.exceptions import HITLTimeoutError

    # The form's fields were those of the instance that asked. This one may have the DAG's, as in Airflow 3.1, to which
    # Airflow would compare the answer's; what counts is compared with the store.
    operator.params = ParamsDict()
    try:
        yield
    except HITLTimeoutError as error:
        raise AirflowFailException("no answer within response_timeout; nothing is reset") from error
