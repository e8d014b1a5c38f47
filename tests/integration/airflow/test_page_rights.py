"""Who sees which region on the page of a real Airflow: the region's DAGs decide, and nothing that a request says."""

from __future__ import annotations

from contextlib import closing

import httpx
import pytest

from airflow_kcr.api.regions import connect, store_url
from airflow_kcr.embedded.airflow_client import AirflowClient
from airflow_kcr.embedded.processes import happened
from airflow_kcr.protocol.region.commands import DeclareRegion
from airflow_kcr.protocol.region.state import Spec
from airflow_kcr.protocol.values import RegionName
from airflow_kcr.spec import parse
from tests.support.live_airflow import OWN, LiveAirflow

pytestmark = pytest.mark.timeout(300)

# One names the region `own`; the other works on `others`, and says so of itself with the same tag.
DAGS = f"""
from airflow.sdk import DAG
from airflow_kcr.operators.region import KcrPauseOperator

for dag_id, region in (("{OWN}", "own"), ("others_dag", "others")):
    with DAG(dag_id, schedule=None, tags=["kcr"]) as dag:
        KcrPauseOperator(task_id="pause", region=region)
    globals()[dag_id] = dag
"""
ASKED = ["", f"?dag_id={OWN}", "?dag_id=~", "?dag_id=others_dag", "?region=own", f"?store=kcr_default&dag_id={OWN}"]


def declare(url: str, name: str) -> None:
    spec = parse(
        f"region: {name}\nkafka: {{bootstrap.servers: 'b:9092'}}\n"
        f"groups: [{{group_id: {name}-g, topics: [t], pipeline: 'a:b'}}]\n"
    )
    with closing(connect(store_url(url))) as store:
        store.handle(RegionName(name), DeclareRegion(spec=Spec(text=spec.to_json_text(), rules=spec.rules())))


def page(client: AirflowClient, place: str) -> httpx.Response:
    """Open a place of the page as that user."""
    client.request("GET", "version")  # logs in
    assert client._client is not None
    return client._client.get(f"/kcr{place}")


def test_a_right_to_a_dag_of_ones_own_shows_no_other_region_whatever_is_asked(airflow: LiveAirflow) -> None:
    for name in ("own", "others"):
        declare(airflow.store_url, name)
    airflow.add_dags("rights", DAGS, OWN, "others_dag")
    with airflow.owner() as owner:
        assert happened(lambda: page(owner, "/regions/own").status_code == 200, within=60, pause=1)
        for asked in ASKED:
            listed = page(owner, f"/{asked}")
            assert listed.status_code == 200, asked
            assert "regions/own" in listed.text
            assert "others" not in listed.text, asked
            for place in ("/regions/others", "/stores/kcr_default/regions/others", "/regions/nowhere"):
                assert page(owner, place + asked).status_code == 403, (place, asked)
            assert page(owner, f"/regions/own{asked}").status_code == 200
        # A DAG that is stored anew brings the right to the regions that it has then, and to no other.
        swapped = DAGS.replace('"own"', '"first"').replace('"others"', '"own"').replace('"first"', '"others"')
        (airflow.dags / "rights.py").write_text(swapped, encoding="utf-8")
        assert happened(lambda: page(owner, "/regions/own").status_code == 403, within=60, pause=1)
        assert page(owner, "/regions/others").status_code == 200
    listed = page(airflow.viewer, "/")
    assert "regions/own" in listed.text
    assert "regions/others" in listed.text
    assert page(airflow.viewer, "/regions/others").status_code == 200
    assert httpx.get(f"{airflow.airflow.known.url}/kcr/regions/own?dag_id={OWN}").status_code == 401
