"""Declares a region, or changes it, from its spec."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.operators.base import RegionOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_kcr.spec import RegionSpec


class KcrApplyRegionOperator(RegionOperator):
    """Creates the region of a spec, stopped, or changes it; the same spec again changes nothing.

    The spec is read and checked when the DAG file is parsed: what is wrong in it is a DAG import error that names the
    fields. Nothing of it is templated.

    Args:
        spec: a `RegionSpec`; a mapping of the same fields; the absolute path of a YAML file; or YAML, which has more
            than one line.
        start: whether a region that is stopped or halted is started afterwards, and one that is paused goes on. Members
            start a stopped region by themselves.
        kwargs: as for every operator; `kcr_conn_id` among them.

    Raises:
        SpecError: the spec has contradictions, all of them named.
        ConfigurationError: it is none of these, or the path is not absolute.
    """

    template_fields = ("kcr_conn_id",)

    def __init__(
        self,
        *,
        spec: RegionSpec | Mapping[str, object] | str | Path,
        start: bool = False,
        **kwargs: Any,  # noqa: ANN401 (Airflow's own)
    ) -> None:
        if "region" in kwargs:
            raise ConfigurationError("the region's name is in its spec; leave `region` out")
        found = read_spec(spec)
        super().__init__(region=found.region, **kwargs)
        self.spec = found
        self.start = start

    def execute(self, context: Context) -> dict[str, object]:
        """Apply the spec, and return what was done, as `kcr region apply` shows it.

        Raises:
            SpecRefused: members that live can't run under it; the region keeps the spec that it has.
        """
        from airflow_kcr.api import goals

        with self.lent(context) as region:
            applied = region.apply(self.spec)
            for difference in applied.differences:
                self.log.info("%s counts %s", difference.path, difference.takes_effect)
            region.wait_for(goals.SPEC_CHECKED)
            if self.start:
                region.start()
        self.log.info("Region %s is %s", applied.region, applied.change)
        return applied.to_json()


def read_spec(spec: RegionSpec | Mapping[str, object] | str | Path) -> RegionSpec:
    """Return the spec that somebody has written in one of the ways that `KcrApplyRegionOperator` takes.

    Raises:
        SpecError: it has contradictions, or the file can't be read.
        ConfigurationError: it is none of these, or the path is not absolute.
    """
    from airflow_kcr.spec import RegionSpec, load, parse

    match spec:
        case RegionSpec():
            return spec
        case Mapping():
            return RegionSpec.from_json(spec)
        case str() if "\n" in spec.strip():
            return parse(spec)
        case str() | Path():
            path = Path(spec)
            if not path.is_absolute():
                raise ConfigurationError(
                    f"processes of Airflow run in different folders, so the path of a spec can't be {str(path)!r}; "
                    "write Path(__file__).parent / 'NAME.yaml'"
                )
            return load(path)
        case _:
            raise ConfigurationError(f"a spec is a RegionSpec, a mapping, a path or YAML, not {type(spec).__name__}")
