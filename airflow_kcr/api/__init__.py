"""The Python API: what the command line does, and the Airflow hook, as calls with typed answers.

`Region` is one region of a store. Its verbs return views: dataclasses whose `to_json` is the JSON that
docs/reference/cli.md shows.
"""

from __future__ import annotations

from airflow_kcr.api.adoption import AdoptedPartition, Adoption, ConsumerOffsets
from airflow_kcr.api.checkpoint_stats import CheckpointStats
from airflow_kcr.api.checkpoints import CheckpointRequestView, CheckpointSummary, CheckpointView, WayBack
from airflow_kcr.api.clusters import Cluster, Clusters
from airflow_kcr.api.lag import GroupLag, LagAt, RegionLag
from airflow_kcr.api.ledger import RecordView, Repetition
from airflow_kcr.api.partitions import Comparison, Lag
from airflow_kcr.api.recomputations import Compare, Into, OutputComparison, RecomputationView, Replace
from airflow_kcr.api.region import Region
from airflow_kcr.api.regions import opened, regions, store_url
from airflow_kcr.api.reset_views import ResetView
from airflow_kcr.api.specs import Applied, Change
from airflow_kcr.api.verdict import Verdict
from airflow_kcr.api.views import MemberView, RegionSummary, RegionView
from airflow_kcr.api.waiting import Progress
from airflow_kcr.goals import Goal
from airflow_kcr.protocol.region.plans import Plan
from airflow_kcr.protocol.region.rows import ResetRequest

__all__ = [
    "AdoptedPartition",
    "Adoption",
    "Applied",
    "Change",
    "CheckpointRequestView",
    "CheckpointStats",
    "CheckpointSummary",
    "CheckpointView",
    "Cluster",
    "Clusters",
    "Compare",
    "Comparison",
    "ConsumerOffsets",
    "Goal",
    "GroupLag",
    "Into",
    "Lag",
    "LagAt",
    "MemberView",
    "OutputComparison",
    "Plan",
    "Progress",
    "RecomputationView",
    "RecordView",
    "Region",
    "RegionLag",
    "RegionSummary",
    "RegionView",
    "Repetition",
    "Replace",
    "ResetRequest",
    "ResetView",
    "Verdict",
    "WayBack",
    "opened",
    "regions",
    "store_url",
]
