"""The double of a Kubernetes API server and its node, asked by Kubernetes' own client for Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kubernetes.client import ApiException, CoreV1Api
from kubernetes.config import new_client_from_config
from kubernetes.watch import Watch

from airflow_kcr.embedded.processes import happened
from tests.support.kubelet import Image, KubernetesCluster, can_run_pods, kubernetes_cluster
from tests.support.kubernetes import kubeconfig

pytestmark = pytest.mark.skipif(not can_run_pods(), reason="needs root: pods are processes in namespaces of their own")

SPACE = "kcr"
MANIFEST = """
{apiVersion: v1, kind: ServiceAccount, metadata: {name: reader, namespace: kcr}}
---
kind: Role
metadata: {name: reader, namespace: kcr}
rules: [{apiGroups: [""], resources: [pods, configmaps], verbs: [get, list, watch]}]
---
kind: RoleBinding
metadata: {name: reader, namespace: kcr}
roleRef: {kind: Role, name: reader}
subjects: [{kind: ServiceAccount, name: reader, namespace: kcr}]
"""
WITHIN = 20.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[KubernetesCluster]:
    image = Image(entry_point=("sh", "-c"), environment={"PATH": "/usr/bin:/bin"})
    with kubernetes_cluster(tmp_path / "cluster", image) as cluster:
        cluster.api.apply(MANIFEST)
        yield cluster


@contextmanager
def client(cluster: KubernetesCluster, folder: Path, account: str = "") -> Iterator[CoreV1Api]:
    file = cluster.client_configuration(folder, SPACE, account)
    with new_client_from_config(str(file)) as made:
        yield CoreV1Api(made)


def refusal(call: Callable[[], object]) -> tuple[int, str]:
    """Return the status of a refused call, and its message."""
    with pytest.raises(ApiException) as raised:
        call()
    return raised.value.status, str(raised.value.body)


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {"of": "test"}}, "data": data}


def pod(name: str, script: str, **more: object) -> dict[str, Any]:
    container = {"name": "main", "image": "any", "args": [script], **more}
    spec = {"containers": [container], "restartPolicy": "Never", "serviceAccountName": "reader"}
    return {"metadata": {"name": name}, "spec": spec}


def phase(core: CoreV1Api, name: str) -> str:
    return str(core.read_namespaced_pod(name, SPACE).status.phase)


def test_without_a_token_nothing_is_answered_and_an_account_may_do_what_its_role_says(
    cluster: KubernetesCluster, tmp_path: Path
) -> None:
    with client(cluster, tmp_path, "reader") as reader:
        assert reader.list_namespaced_pod(SPACE).items == []
        status, message = refusal(lambda: reader.create_namespaced_pod(SPACE, pod("a", "true")))
        assert status == 403
        assert 'User \\"system:serviceaccount:kcr:reader\\" cannot create resource \\"pods\\"' in message
        assert refusal(lambda: reader.delete_collection_namespaced_pod(SPACE))[0] == 403
        assert refusal(lambda: reader.list_namespaced_secret(SPACE))[0] == 403
    (tmp_path / "wrong").write_text(kubeconfig(cluster.api, SPACE, "wrong"))
    with new_client_from_config(str(tmp_path / "wrong")) as made:
        assert refusal(lambda: CoreV1Api(made).list_namespaced_pod(SPACE))[0] == 401


def test_conflicts_and_objects_that_are_not_there_are_refused(cluster: KubernetesCluster, tmp_path: Path) -> None:
    with client(cluster, tmp_path) as admin:
        first = admin.create_namespaced_config_map(SPACE, config_map("a", x="1"))
        again = refusal(lambda: admin.create_namespaced_config_map(SPACE, config_map("a")))
        assert again[0] == 409
        assert "AlreadyExists" in again[1]
        admin.patch_namespaced_config_map("a", SPACE, {"data": {"y": "2"}})
        first.data = {"x": "3"}
        late = refusal(lambda: admin.replace_namespaced_config_map("a", SPACE, first))
        assert late[0] == 409
        assert "the object has been modified" in late[1]
        assert admin.read_namespaced_config_map("a", SPACE).data == {"x": "1", "y": "2"}
        assert refusal(lambda: admin.read_namespaced_config_map("b", SPACE))[0] == 404
        assert refusal(lambda: admin.create_namespaced_config_map(SPACE, config_map("Not_A_Name")))[0] == 422
        nobody = pod("a", "true")
        nobody["spec"]["serviceAccountName"] = "nobody"
        assert refusal(lambda: admin.create_namespaced_pod(SPACE, nobody))[0] == 403


def test_a_watch_tells_what_has_happened_since_a_version_and_is_refused_once_that_is_forgotten(
    cluster: KubernetesCluster, tmp_path: Path
) -> None:
    with client(cluster, tmp_path) as admin:
        listed = admin.list_namespaced_config_map(SPACE)
        admin.create_namespaced_config_map(SPACE, config_map("a", x="1"))
        admin.patch_namespaced_config_map("a", SPACE, {"metadata": {"labels": {"of": "another"}}})
        told = {"resource_version": listed.metadata.resource_version, "timeout_seconds": 1}
        seen = [
            (event["type"], event["object"].metadata.name)
            for event in Watch().stream(admin.list_namespaced_config_map, SPACE, label_selector="of=test", **told)
        ]
        # Who no longer is among the selected is deleted for the one who watches them.
        assert seen == [("ADDED", "a"), ("DELETED", "a")]
        cluster.api.objects.compact()
        with pytest.raises(ApiException) as raised:
            list(Watch().stream(admin.list_namespaced_config_map, SPACE, **told))
        assert raised.value.status == 410


def test_a_pod_has_its_environment_its_files_and_its_exit_code(cluster: KubernetesCluster, tmp_path: Path) -> None:
    cluster.api.secret(SPACE, "store", {"url": "postgresql://store"})
    with client(cluster, tmp_path) as admin:
        reference = {"secretKeyRef": {"name": "store", "key": "url"}}
        script = 'echo "$URL $(cat /opt/spark/conf/x) $(cat /var/run/secrets/kubernetes.io/serviceaccount/namespace)"'
        given = pod(
            "a",
            f"{script}; exit 3",
            env=[{"name": "URL", "valueFrom": reference}],
            volumeMounts=[{"name": "conf", "mountPath": "/opt/spark/conf"}],
        )
        given["spec"]["volumes"] = [{"name": "conf", "configMap": {"name": "conf"}}]
        admin.create_namespaced_pod(SPACE, given)
        waits = happened(lambda: bool(admin.read_namespaced_pod("a", SPACE).status.container_statuses), within=WITHIN)
        assert waits
        assert phase(admin, "a") == "Pending"
        admin.create_namespaced_config_map(SPACE, config_map("conf", x="a file"))
        assert happened(lambda: phase(admin, "a") == "Failed", within=WITHIN)
        (status,) = admin.read_namespaced_pod("a", SPACE).status.container_statuses
        assert status.state.terminated.exit_code == 3
        assert "postgresql://store a file kcr" in admin.read_namespaced_pod_log("a", SPACE)


def test_a_killed_container_has_the_exit_code_of_its_signal(cluster: KubernetesCluster, tmp_path: Path) -> None:
    with client(cluster, tmp_path) as admin:
        made = admin.create_namespaced_pod(SPACE, pod("a", "echo up; exec sleep 60"))
        assert happened(lambda: "up" in admin.read_namespaced_pod_log("a", SPACE), within=WITHIN)
        cluster.node.kill(made.metadata.uid)
        assert happened(lambda: phase(admin, "a") == "Failed", within=WITHIN)
        (status,) = admin.read_namespaced_pod("a", SPACE).status.container_statuses
        assert status.state.terminated.exit_code == 137


def test_a_deleted_pod_has_its_grace_and_what_it_owns_goes_with_it(cluster: KubernetesCluster, tmp_path: Path) -> None:
    with client(cluster, tmp_path) as admin:
        polite = admin.create_namespaced_pod(
            SPACE, pod("polite", "trap 'exit 0' TERM; echo up; while :; do sleep 0.1; done")
        )
        admin.create_namespaced_pod(SPACE, pod("stubborn", "trap '' TERM; echo up; while :; do sleep 0.1; done"))
        owned = config_map("owned")
        owned["metadata"]["ownerReferences"] = [
            {"apiVersion": "v1", "kind": "Pod", "name": "polite", "uid": polite.metadata.uid}
        ]
        admin.create_namespaced_config_map(SPACE, owned)
        assert happened(
            lambda: all("up" in admin.read_namespaced_pod_log(one, SPACE) for one in ("polite", "stubborn")),
            within=WITHIN,
        )
        admin.delete_namespaced_pod("polite", SPACE)
        admin.delete_namespaced_pod("stubborn", SPACE, grace_period_seconds=1)
        assert admin.read_namespaced_pod("stubborn", SPACE).metadata.deletion_timestamp is not None
        assert happened(lambda: admin.list_namespaced_pod(SPACE).items == [], within=WITHIN)
        assert refusal(lambda: admin.read_namespaced_config_map("owned", SPACE))[0] == 404
