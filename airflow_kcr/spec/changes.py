"""What a changed spec means for a running region: when each change takes effect (docs/reference/states.md).

- *At once*: when checkpoints are made, batches, timeouts, retention, history and policies.
- *At the next checkpoint, with a restart of the members*: whatever a member is built from, so topics, members,
  pipeline, delivery, and also what its Kafka client was given: assignor, membership, its settings. Three times are
  among those settings, also where they follow from others: the change of `timeouts.reset` counts at once, but the
  `max_poll_interval` that follows from it needs new clients, and is listed as well.
- *Refused*: the region's name, a group's id and its cluster; that would be another region. Groups may come and go, but
  if some go while others come, that can't be told from a new id for the same group.

Two lists of bootstrap servers that share an address are the same cluster; others are another one as far as a file can
tell. The cluster's id has the last word: an address that Kafka says is the same cluster's may change.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_kcr.errors import SpecError
from airflow_kcr.spec.fields import Declared, TakesEffect, declared
from airflow_kcr.spec.model import GroupSpec, RegionSpec

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping


class Difference(NamedTuple):
    """One field that two specs have differently; Kafka settings are named without their values."""

    path: str
    """As in the file, but groups by their ids: `groups[flights-etl].members`."""

    takes_effect: TakesEffect


def differences(old: RegionSpec, new: RegionSpec, same: Collection[str] = ()) -> list[Difference]:
    """Return every field in which `new` is not `old`, with when the change takes effect; empty for equal specs.

    The order of groups, and a cluster that no group uses, make no difference.

    Args:
        old: the spec of the running region.
        new: the one that is to replace it.
        same: groups whose addresses, old and new, were found to lead to one cluster.
    """
    if old == new:
        return []
    before, after = old.to_json(), new.to_json()
    found = [*_fields(before, after, {"region"}), *_groups(old, new, same)]
    others = declared(RegionSpec).keys() - {"region", "groups", "kafka", "kafka_conn_id"}
    found += [each for each in _fields(before, after, others) if each.path not in _CLIENT_TIMES]
    found += [Difference(path, TakesEffect.NEXT_CHECKPOINT) for path in _client_times(old, new)]
    return found


class Split(NamedTuple):
    """A changed spec, by when it takes effect."""

    at_once: RegionSpec
    """What is in force from now on."""

    later: RegionSpec | None
    """The whole new spec, where some of it waits for the next checkpoint; else None."""


def split(old: RegionSpec, new: RegionSpec, same: Collection[str] = ()) -> Split:
    """Return what of `new` counts at once, and `new` itself where the rest waits.

    What can't be combined with the groups as they still are waits with them: a session shorter than a relaunch, say,
    comes in with the dynamic members that it needs.

    Args:
        old: the spec of the running region.
        new: the one that is to replace it.
        same: as in `differences`.

    Raises:
        SpecError: with every difference that is refused.
    """
    found = differences(old, new, same)
    refused = [path for path, takes_effect in found if takes_effect is TakesEffect.REFUSED]
    if refused:
        raise SpecError(tuple((path, "can't change in a region that exists; make another region") for path in refused))
    later = new if any(takes_effect is TakesEffect.NEXT_CHECKPOINT for _, takes_effect in found) else None
    if later is None:
        return Split(new, None)
    try:
        at_once = replace(new, groups=old.groups, kafka=old.kafka, kafka_conn_id=old.kafka_conn_id)
    except SpecError:
        at_once = old
    return Split(at_once, later)


_CLIENT_TIMES = ("timeouts.session", "timeouts.max_poll_interval", "timeouts.metadata_refresh")
"""Times that the Kafka client is given when it is built, and keeps."""


def _client_times(old: RegionSpec, new: RegionSpec) -> Iterator[str]:
    sessions = [
        [spec.timeouts.session_timeout(static=group.static_membership) for spec in (old, new)] for group in new.groups
    ]
    pairs = (
        any(before != after for before, after in sessions) or old.timeouts.session != new.timeouts.session,
        old.timeouts.max_poll_interval != new.timeouts.max_poll_interval
        or old.timeouts.max_poll != new.timeouts.max_poll,
        old.timeouts.metadata_refresh != new.timeouts.metadata_refresh,
    )
    return (path for path, differs in zip(_CLIENT_TIMES, pairs, strict=True) if differs)


def _groups(old: RegionSpec, new: RegionSpec, same: Collection[str]) -> list[Difference]:
    before = {group["group_id"]: group for group in old.to_json()["groups"]}
    after = {group["group_id"]: group for group in new.to_json()["groups"]}
    gone, come = sorted(before.keys() - after.keys()), sorted(after.keys() - before.keys())
    renamed = bool(gone and come)
    declaration = declared(GroupSpec)["group_id"] if renamed else declared(RegionSpec)["groups"]
    effect = _effect(declaration)
    found = [Difference(f"groups[{name}]{'.group_id' if renamed else ''}", effect) for name in gone + come]
    clusters: dict[str, TakesEffect] = {}
    for name in sorted(before.keys() & after.keys()):
        found += _leaves(_own(before[name]), _own(after[name]), f"groups[{name}]", declared(RegionSpec)["groups"])
        for path, takes_effect in _cluster(old, new, name, is_same=name in same):
            clusters.setdefault(path, takes_effect)
    return found + [Difference(path, takes_effect) for path, takes_effect in clusters.items()]


def _own(group: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name not in {"kafka", "kafka_conn_id"}}


def _cluster(old: RegionSpec, new: RegionSpec, group_id: str, *, is_same: bool) -> Iterator[tuple[str, TakesEffect]]:
    """How a group's cluster is reached, wherever the file says so."""
    (before, old_conn), (after, new_conn) = old.cluster_of(group_id), new.cluster_of(group_id)
    own = [spec.group(group_id) for spec in (old, new)]
    place = f"groups[{group_id}]." if any(group.kafka or group.kafka_conn_id for group in own) else ""
    if old_conn != new_conn:
        refused = _effect(declared(RegionSpec)["kafka_conn_id"])
        yield f"{place}kafka_conn_id", TakesEffect.NEXT_CHECKPOINT if is_same else refused
        return
    old_settings, new_settings = dict(before or {}), dict(after or {})
    for name in sorted(old_settings.keys() | new_settings.keys()):
        if old_settings.get(name) == new_settings.get(name):
            continue
        other = name == "bootstrap.servers" and not is_same and is_other_address(old_settings, new_settings)
        yield f"{place}kafka.{name}", TakesEffect.REFUSED if other else _effect(declared(RegionSpec)["kafka"])


def is_other_address(old: Mapping[str, str], new: Mapping[str, str]) -> bool:
    """Whether two groups of client settings have no address in common."""
    one, other = ({s.strip() for s in settings.get("bootstrap.servers", "").split(",")} for settings in (old, new))
    return not one & other


def _fields(old: Mapping[str, Any], new: Mapping[str, Any], names: Iterable[str]) -> Iterator[Difference]:
    """Yield where these fields of two specs differ."""
    for name in sorted(names):
        yield from _leaves(old.get(name), new.get(name), name, declared(RegionSpec)[name])


def _leaves(
    old: Any,  # noqa: ANN401 (any plain value)
    new: Any,  # noqa: ANN401 (any plain value)
    path: str,
    declaration: Declared,
    around: TakesEffect = TakesEffect.AT_ONCE,
) -> Iterator[Difference]:
    """Yield where two plain values of one field differ; lists are one value."""
    effect = _effect(declaration, around)
    if not isinstance(old, dict) or not isinstance(new, dict):
        if old != new:
            yield Difference(path, effect)
        return
    within = {} if declaration.section is None else declared(declaration.section)
    for name in [*old, *(name for name in new if name not in old)]:
        yield from _leaves(old.get(name), new.get(name), f"{path}.{name}", within.get(name, declaration), effect)


def _effect(declaration: Declared, around: TakesEffect = TakesEffect.AT_ONCE) -> TakesEffect:
    """Return when a change of a field counts: as declared, else as a change of what is around it."""
    return around if declaration.takes_effect is None else declaration.takes_effect
