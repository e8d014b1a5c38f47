"""Find a pipeline, and refuse what can't be one, before anything is consumed (docs/how-to/write-a-pipeline.md).

A pipeline is named `module:function` or `path/to/file.py:function`. Its module is imported in this process: from
`sys.path`, on which the working folder comes first, or from the file, whose folder is put on `sys.path` so that
it finds its siblings.

Executors need the code too, for functions that run there. A file and its siblings are sent with each such function; a
named module must be installed where the executors run, or be given to `spark-submit --py-files`.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from airflow_kcr.errors import PipelineUnusable
from airflow_kcr.protocol.observations import LogBounds
from airflow_kcr.protocol.values import GroupPartition, Offset, Range, Timeline
from airflow_kcr.spark.context import BatchContext
from airflow_kcr.spark.reads import Reader, Source
from airflow_kcr.spark.session import member_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Pipeline: TypeAlias = "Callable[[DataFrame, BatchContext], None]"

_NEVER_SENT: Final = ("__main__", "airflow_kcr")

WANTED: Final = "def process(batch: DataFrame, context: BatchContext) -> None"


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedFunction:
    """A function of the user's, as the spec names it; as a text, what messages call it."""

    what: str
    """Such as `pipeline`."""

    name: str
    """`module:function` or `path/to/file.py:function`."""

    wanted: str
    """The expected signature."""

    called_with: str
    """Its two arguments, for messages."""

    def __str__(self) -> str:
        return f"the {self.what} {self.name!r}"


def load_pipeline(name: str) -> Pipeline:
    """Return the pipeline of that name, imported and checked.

    Args:
        name: `module:function` or `path/to/file.py:function`, as in the spec.

    Raises:
        PipelineUnusable: there is no such module, file or function, importing it failed, or it can't be called with a
            batch and its context.
    """
    return cast("Pipeline", load_function(pipeline_named(name)))


def pipeline_named(name: str) -> NamedFunction:
    """Return the pipeline of that name, as messages call it; nothing is imported."""
    return NamedFunction(what="pipeline", name=name, wanted=WANTED, called_with="a batch and its context")


def load_function(named: NamedFunction) -> Callable[[object, object], object]:
    """Return a function of two arguments, imported and checked.

    Args:
        named: which one, and what for.

    Raises:
        PipelineUnusable: there is no such module, file or function, importing it failed, or it can't be called so.
    """
    place, colon, attribute = named.name.rpartition(":")
    if not colon or not place or not attribute:
        raise PipelineUnusable(
            f"{named} is no name of a {named.what}; write module:function or path/to/file.py:function"
        )
    module = _file(Path(place), named) if place.endswith(".py") else _module(place, named)
    return _checked(_function(module, attribute, named), named)


def _module(place: str, named: NamedFunction) -> ModuleType:
    working = str(Path.cwd())
    if working not in sys.path and "" not in sys.path:
        sys.path.insert(0, working)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{place}.".startswith(f"{error.name}."):
            raise _import_failed(named, error) from error
        looked = "\n".join(f"  {entry or working}" for entry in sys.path)
        # What to do stands before the list: where only one line is shown, as in Airflow, that is the first one.
        raise PipelineUnusable(
            f"{named} can't be loaded: there is no module {error.name!r}; put it on PYTHONPATH, start from its folder, "
            f"or name its file, path/to/file.py:function. Looked in\n{looked}"
        ) from error
    except (Exception, SystemExit) as error:
        raise _import_failed(named, error) from error


def _file(path: Path, named: NamedFunction) -> ModuleType:
    full = path.expanduser().absolute()
    if not full.is_file():
        raise PipelineUnusable(f"{named} can't be loaded: there is no file {full}")
    loaded = _loaded(full)
    if loaded is not None:
        return loaded
    if str(full.parent) not in sys.path:
        sys.path.insert(0, str(full.parent))
    # Under its own name, so that its siblings, and the workers that unpickle its functions, can import it too.
    module_name = full.stem
    require_free_name(named)
    spec = importlib.util.spec_from_file_location(module_name, full)
    if spec is None or spec.loader is None:
        raise PipelineUnusable(f"{named} can't be loaded: {full} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[module_name]
        raise _import_failed(named, error) from error
    _send_with_functions(full.parent)
    return module


def _loaded(full: Path) -> ModuleType | None:
    """Return the module that was imported from a file; None: none was."""
    found = next((m for m in list(sys.modules.values()) if getattr(m, "__file__", None) == str(full)), None)
    return None if found is None or found.__name__ == "__main__" else found


def require_free_name(named: NamedFunction) -> None:
    """Refuse a function in a file whose module's name another module has in this process; imports nothing.

    Raises:
        PipelineUnusable: that is so.
    """
    place = named.name.rpartition(":")[0]
    full = Path(place).expanduser().absolute()
    if place.endswith(".py") and _loaded(full) is None and full.stem in sys.modules:
        raise PipelineUnusable(
            f"{named} can't be loaded: another module named {full.stem!r} is imported already, from "
            f"{getattr(sys.modules[full.stem], '__file__', None) or 'Python itself'}; give the file another name"
        )


def _send_with_functions(folder: Path) -> None:
    """Let functions of the modules beneath a folder be sent to executors as they are, not as a name to import."""
    from pyspark import cloudpickle

    for module in list(sys.modules.values()):
        path = Path(getattr(module, "__file__", None) or "/")
        # What is installed beneath the folder, in a virtual environment, is installed on executors too.
        if folder in path.parents and "site-packages" not in path.parts and not module.__name__.startswith(_NEVER_SENT):
            cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def _import_failed(named: NamedFunction, error: BaseException) -> PipelineUnusable:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames and frames[-1].filename != __file__ else ""
    if isinstance(error, SyntaxError) and error.filename:
        where = f" ({error.filename}, line {error.lineno})"
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return PipelineUnusable(f"importing {named} failed: {type(error).__name__}: {text}{where}")


def _function(module: ModuleType, attribute: str, named: NamedFunction) -> object:
    found: object = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            own = sorted(
                key
                for key, value in vars(module).items()
                if inspect.isfunction(value) and value.__module__ == module.__name__ and not key.startswith("_")
            )
            raise PipelineUnusable(
                f"{named} can't be loaded: {module.__file__ or module.__name__} has no {attribute!r}; "
                f"its functions are: {', '.join(own) or 'none'}"
            )
        found = getattr(found, part)
    return found


def _checked(found: object, named: NamedFunction) -> Callable[[object, object], object]:
    if inspect.isclass(found) or not callable(found):
        raise PipelineUnusable(f"{named} is a {_kind(found)}, not a function; wanted is\n  {named.wanted}")
    # An object with __call__ is what its __call__ is; for a function this is the interpreter's own, which is harmless.
    body = type(found).__call__
    for test, kind in (
        (inspect.iscoroutinefunction, "an async function"),
        (inspect.isasyncgenfunction, "an async generator"),
        (inspect.isgeneratorfunction, "a generator (it has a yield)"),
    ):
        if test(found) or test(body):
            raise PipelineUnusable(
                f"{named} is {kind}: calling it would do nothing; wanted is a plain function\n  {named.wanted}"
            )
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError) as error:
        raise PipelineUnusable(f"what {named} takes can't be told: {error}; wanted is\n  {named.wanted}") from error
    try:
        signature.bind(object(), object())
    except TypeError as error:
        raise PipelineUnusable(
            f"{named} can't be called with {named.called_with} ({error}):\n"
            f"  it is      def {named.name.rpartition(':')[2]}{signature}\n  wanted is  {named.wanted}"
        ) from error
    return found


def _kind(found: object) -> str:
    return "class" if inspect.isclass(found) else type(found).__name__


# Getting Spark ready before the first batch counts.
#
# The first batch of an application pays for much that no later one does: the connector's classes, a consumer for each
# partition, code that Spark generates, Python workers and what they import. That took 12 to 16 s on a laptop, of the
# batch's timeout. So a record of each partition is read, and seen by Python, while the members join their group.

_NO_TIMELINE: Final = Timeline(0)
"""Executors keep consumers by the timeline; a batch has none of these."""


def warm_up(
    spark: SparkSession, source: Source, logs: Mapping[GroupPartition, LogBounds], imports: Iterable[str]
) -> int:
    """Read a record of each log that has one, and have Python workers see it and import what the pipeline does.

    Args:
        spark: the application's session.
        source: of one of its members.
        logs: of the group; if none has a record, only Python is started.
        imports: names of modules; those that a worker does not have are left out.

    Returns:
        How many bytes key and value of these records have on average; 0 if there is none.
    """
    from pyspark.sql import Observation
    from pyspark.sql.functions import expr, udf

    context, session = spark.sparkContext, member_session(spark)
    context.setJobDescription("kcr: gets Spark ready")
    ranges = {p: Range(log.start, Offset(log.start + 1)) for p, log in logs.items() if log.start < log.end}
    slots = context.defaultParallelism
    least = replace(source, fetch=1)  # the fewest records that a broker sends: a quota counts them
    rows = Reader(session, least).read(ranges, _NO_TIMELINE) if ranges else session.range(slots, numPartitions=slots)
    size = "coalesce(length(key), 0) + coalesce(length(value), 0)" if ranges else "0"
    # What pipelines are made of: a function in Python, a shuffle, a write. The row of an aggregate without a group is
    # there also where markers hide that a log is empty, and can be observed; Spark leaves out what has no row.
    ready = udf(_imported(tuple(imports)), "int")
    each = rows.select(ready(rows.columns[0]).alias("modules"), expr(size).alias("size"))
    seen = Observation()
    whole = each.agg(expr("count(modules) AS modules"), expr("avg(size) AS size")).observe(
        seen, expr("max(size) AS size")
    )
    whole.write.format("noop").mode("overwrite").save()
    return int(seen.get["size"] or 0)


def imports_of(pipeline: Pipeline) -> tuple[str, ...]:
    """Return the modules that a pipeline's module has imported; Python workers need them for its functions."""
    module = sys.modules.get(getattr(pipeline, "__module__", ""))
    found = (value.__name__ for value in vars(module or ModuleType("none")).values() if isinstance(value, ModuleType))
    return tuple(sorted(set(found)))


def _imported(names: tuple[str, ...]) -> Callable[[object], int]:
    def ready(value: object) -> int:
        for name in names:
            with suppress(Exception):  # what the driver has need not be there
                importlib.import_module(name)
        return len(names)

    return ready
