"""Regions as assets: `kcr://REGION`, whose events are published checkpoints.

A DAG is scheduled by a name, so an asset has the name alone. Each event has the region's id, by which
`checkpoints.gone` tells one of a region that was deleted and declared again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow.sdk import Asset

from airflow_kcr.airflow_features import CHECKPOINT_KEYS
from airflow_kcr.errors import InvalidIdentifier
from airflow_kcr.hooks.compat import has
from airflow_kcr.protocol.values import region_name

if TYPE_CHECKING:
    from urllib.parse import SplitResult

    from airflow.sdk import PartitionedAssetTimetable
    from pydantic import JsonValue

SCHEME: Final = "kcr"


def region_asset(region: str) -> Asset:
    """Return the asset of a region; its name is its URI, so that both ways to write it mean the same one.

    Raises:
        InvalidIdentifier: the name is none of a region.
    """
    uri = f"{SCHEME}://{region_name(region)}"
    return Asset(name=uri, uri=uri)


def checkpoint_schedule(region: str) -> PartitionedAssetTimetable | Asset:
    """Return the schedule of a DAG that builds on a region's checkpoints, to be read by `checkpoint_of`.

    From Airflow 3.3 on the DAG runs once for each checkpoint, whose key is the run's partition key. Before, it runs
    whenever there are new ones, and several may share a run, which then is that of the newest.

    Args:
        region: the region's name.

    Raises:
        InvalidIdentifier: the name is none of a region.
    """
    asset = region_asset(region)
    if not has(CHECKPOINT_KEYS):
        return asset
    from airflow.sdk import PartitionedAssetTimetable

    return PartitionedAssetTimetable(assets=asset)


def create_asset(*, region: str, extra: dict[str, JsonValue] | None = None) -> Asset:
    """Return the asset of a region, as Airflow's asset factories are called.

    Args:
        region: the region's name.
        extra: what the asset shall carry.
    """
    uri = f"{SCHEME}://{region_name(region)}"
    return Asset(name=uri, uri=uri, extra=extra)


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """Return the one form of a region's URI.

    Raises:
        ValueError: it names no region, or more than one.
    """
    if uri.path.strip("/") or uri.query or uri.fragment:
        raise ValueError(f"URI format {SCHEME}:// has nothing behind the region: write {SCHEME}://REGION")
    try:
        name = region_name(uri.netloc)
    except InvalidIdentifier as error:
        raise ValueError(f"URI format {SCHEME}:// must name a region: {error.message}") from error
    return uri._replace(netloc=name, path="")
