"""Spark's own client hands an application over to an API server's double, which enforces the roles of the page.

`tests/kubernetes` runs consumers on a real one.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from airflow_kcr.embedded.servers import spark_home
from tests.support.kubernetes_page import SPACE
from tests.support.kubernetes_pods import kubernetes_pods

IMAGE = "registry.example/kcr:1"
PROGRAM = "local:///opt/kcr/lib/python3.12/site-packages/airflow_kcr/__main__.py"
CONF = {
    "spark.kubernetes.namespace": SPACE,
    "spark.kubernetes.container.image": IMAGE,
    "spark.kubernetes.authenticate.driver.serviceAccountName": "kcr-driver",
    "spark.kubernetes.driver.secretKeyRef.KCR_STORE_URL": "kcr:store-url",
    "spark.kubernetes.submission.waitAppCompletion": "false",
}


@pytest.mark.long
def test_sparks_client_hands_a_driver_over_with_the_rights_of_the_page(tmp_path: Path) -> None:
    with kubernetes_pods(tmp_path) as pods:
        api = pods.api
        ran = subprocess.run(
            [
                *(str(spark_home() / "bin" / "spark-submit"), "--master", f"k8s://{api.address}"),
                *("--deploy-mode", "cluster"),
                *(each for name, value in CONF.items() for each in ("--conf", f"{name}={value}")),
                *(PROGRAM, "--help"),
            ],
            env={**os.environ, "KUBECONFIG": str(api.client_configuration(tmp_path, SPACE, "kcr-submit"))},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout
        assert api.refused() == [], ran.stdout
        (pod,) = api.select("pods", SPACE, "spark-role=driver")
        (container,) = pod["spec"]["containers"]
        assert pod["spec"]["serviceAccountName"] == "kcr-driver"
        assert container["image"] == IMAGE
        assert container["args"][0] == "driver"
        assert container["args"][-2:] == [PROGRAM, "--help"]
        (secret,) = (one for one in container["env"] if one["name"] == "KCR_STORE_URL")
        assert secret["valueFrom"]["secretKeyRef"] == {"name": "kcr", "key": "store-url"}
        # They go with the pod.
        own = [one for kind in ("configmaps", "services", "networkpolicies") for one in api.select(kind, SPACE)]
        assert {owner["uid"] for one in own for owner in one["metadata"]["ownerReferences"]} == {pod["metadata"]["uid"]}
        assert {one["kind"] for one in own} == {"ConfigMap", "Service", "NetworkPolicy"}
