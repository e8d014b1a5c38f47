"""A task that applies a plan as Airflow's task runner and triggerer would, without an Airflow server.

`python -m tests.support.apply_task JSON` is one try of the task. What it defers it waits for by its trigger, made anew
from its stored form, and goes on with `resume`; SIGTERM in that time is what a cleared task's trigger is sent. Files of
its folder say how far it has come: `asked`, `deferred`, `cancelled`, and `ended.json` with the result or the error.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.sdk.exceptions import TaskDeferred


def run(text: str) -> int:
    """Run one try, and write how it ended."""
    from airflow.sdk.bases.operator import ExecutorSafeguard
    from airflow.sdk.exceptions import TaskDeferred

    from airflow_kcr.api import Region
    from airflow_kcr.goals import ResetFinished
    from airflow_kcr.operators.reset import KcrApplyResetOperator
    from tests.support.airflow_tasks import FakeTask, task_context

    class Telling(KcrApplyResetOperator):
        """Tells its starter when it has asked."""

        def ask(self, context: Any, region: Region) -> ResetFinished:  # noqa: ANN401 (Airflow's own)
            asked = super().ask(context, region)
            (folder / "asked").touch()
            return asked

    arguments: dict[str, Any] = json.loads(text)
    folder = Path(arguments["folder"])
    operator = Telling(task_id="apply", **arguments["operator"])
    ExecutorSafeguard.tracker.set(operator)
    instance = FakeTask(
        task_id="apply", dag_id="flights_reset", run_id=arguments["run_id"], try_number=arguments["try_number"]
    )
    context = task_context(instance)
    ended: dict[str, Any]
    try:
        try:
            result = operator.execute(context)
        except TaskDeferred as deferred:
            event = asyncio.run(_triggered(deferred, folder / "deferred"))
            if event is None:
                (folder / "cancelled").touch()
                return 0
            result = getattr(operator, deferred.method_name)(context, event=event, **(deferred.kwargs or {}))
        ended = {"state": "success", "result": result}
    except Exception as error:
        logging.getLogger(__name__).exception("the task failed")
        ended = {"state": "failed", "error": f"{type(error).__name__}: {error}"}
    (folder / "ended.new").write_text(json.dumps(ended))
    (folder / "ended.new").replace(folder / "ended.json")
    return 0


async def _triggered(deferred: TaskDeferred, told: Path) -> Any:  # noqa: ANN401 (JSON)
    """Return the payload of the trigger's event; None: it was cancelled. `told` is there once it can be."""
    path, arguments = deferred.trigger.serialize()
    module, name = path.rsplit(".", 1)
    trigger = getattr(import_module(module), name)(**json.loads(json.dumps(arguments)))

    async def first() -> Any:  # noqa: ANN401 (JSON)
        async for event in trigger.run():
            return event.payload

    waits = asyncio.ensure_future(first())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, waits.cancel)
    told.touch()
    with suppress(asyncio.CancelledError):
        return await waits
    await trigger.cleanup()
    return None


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    sys.exit(run(sys.argv[1]))
