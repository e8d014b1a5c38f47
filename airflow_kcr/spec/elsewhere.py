"""Other sinks than those of a region's spec: a document of sinks by group, for output that replaces nothing."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path

from airflow_kcr.errors import ConfigurationError, SpecError
from airflow_kcr.spec import RegionSpec, read_yaml
from airflow_kcr.spec.codec import from_plain, to_plain
from airflow_kcr.spec.fields import path_text


def read_sinks(given: str) -> Mapping[str, object]:
    """Return the sinks that an option names.

    Args:
        given: a YAML file, or the document itself as JSON.

    Raises:
        ConfigurationError: the file can't be read, or is no mapping of groups.
    """
    if given.lstrip().startswith("{"):
        where, text = "the document", given
    else:
        where = given
        try:
            text = Path(given).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise ConfigurationError(f"--into: {given} can't be read: {why}") from None
    try:
        document = read_yaml(text)
    except SpecError as error:
        raise ConfigurationError(f"--into: {where}: {_told(error)}") from None
    if document.refused:
        refused = "; ".join(f"{path_text(one.path)}: {one.text}" for one in document.refused)
        raise ConfigurationError(f"--into: {where}: {refused}")
    if not isinstance(document.value, Mapping):
        raise ConfigurationError(f"--into: {where} must map groups to their sinks, as `GROUP: {{SINK: {{kind: …}}}}`")
    return document.value


def with_sinks(spec: RegionSpec, sinks: Mapping[str, object]) -> RegionSpec:
    """Return a region's spec with only some of its groups, which write into other sinks.

    Args:
        spec: the region's.
        sinks: of each of these groups, by name, as a spec has them; at least those that its pipeline has in the spec.

    Raises:
        ConfigurationError: there is no such group, a sink is missing, or one is declared wrongly; every finding is
            named.
    """
    groups = {group.group_id: group for group in spec.groups}
    if not sinks:
        raise ConfigurationError("into names no group; map each to its sinks, as `GROUP: {SINK: {kind: …}}`")
    for name in sinks:
        if name not in groups:
            near = difflib.get_close_matches(name, groups, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ConfigurationError(
                f"into.{name}: region {spec.region} has no such group; {hint}its groups are {', '.join(groups)}"
            )
    plain = to_plain(spec)
    of_groups = [group for group in plain["groups"] if group["group_id"] in sinks]
    plain["groups"] = [{**group, "sinks": sinks[group["group_id"]]} for group in of_groups]
    try:
        found = from_plain(plain, RegionSpec)
    except SpecError as error:
        places = {f"groups[{index}].sinks": f"into.{group['group_id']}" for index, group in enumerate(of_groups)}
        raise ConfigurationError(_told(error, places)) from None
    for group in found.groups:
        lacking = {sink.name for sink in groups[group.group_id].sinks} - {sink.name for sink in group.sinks}
        if lacking:
            raise ConfigurationError(
                f"into.{group.group_id} lacks sink {', '.join(sorted(lacking))}, which the pipeline of that group "
                "writes to; say where its rows shall go"
            )
    return found


def _told(error: SpecError, places: Mapping[str, str] | None = None) -> str:
    """Return what is wrong, paths of the spec named as the document has them."""
    said = []
    for path, text in error.findings:
        begin = next((begin for begin in places or {} if path.startswith(begin)), "")
        said.append(f"{(places or {}).get(begin, '')}{path.removeprefix(begin)}: {text}")
    return "; ".join(said)
