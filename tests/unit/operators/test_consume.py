"""The Consume operator on a real store, with a stand-in for spark-submit that a test writes."""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, TaskDeferred
from airflow.sdk import DAG
from airflow.sdk.definitions.mappedoperator import MappedOperator
from airflow.serialization.serialized_objects import LazyDeserializedDAG
from structlog.testing import capture_logs

import airflow_kcr
from airflow_kcr.errors import ConfigurationError
from airflow_kcr.hooks.pods import label_of
from airflow_kcr.operators.consume import KcrConsumeOperator, indexes_of
from airflow_kcr.protocol.values import GroupId, RequestId
from airflow_kcr.spark.session import CONNECTOR, POSTGRES_DRIVER
from airflow_kcr.spec import parse
from airflow_kcr.triggers.waits import RegionTrigger
from tests.support.airflow_tasks import FakeTask, task_context
from tests.support.driver import Driver
from tests.support.kubernetes_page import SPACE
from tests.support.kubernetes_pods import NAME, kubernetes_pods

TASK = FakeTask(task_id="consume", dag_id="flights_consumers", run_id="run", map_index=1)


class Submits:
    """A stand-in for spark-submit on `PATH`, which runs these lines and notes how it was called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self("exit 0")

    def __call__(self, body: str) -> None:
        program = self.folder / "bin" / "spark-submit"
        program.write_text(
            "#!/bin/sh\n"
            'for argument in "$@"; do printf "%s\\n" "$argument"; done > "$SUBMITTED/arguments"\n'
            'env > "$SUBMITTED/environment"\n'
            f"ps -o sid= -p $$ > $SUBMITTED/session\n{body}\n"
        )
        program.chmod(program.stat().st_mode | stat.S_IEXEC)

    @property
    def was_called(self) -> bool:
        return (self.folder / "arguments").exists()

    def arguments(self) -> list[str]:
        return (self.folder / "arguments").read_text().splitlines()

    def environment(self) -> dict[str, str]:
        pairs = (line.partition("=") for line in (self.folder / "environment").read_text().splitlines())
        return {name: value for name, _, value in pairs}


def spark_at(monkeypatch: pytest.MonkeyPatch, host: str, **more: Any) -> None:  # noqa: ANN401 (JSON)
    connection = {"conn_type": "spark", "host": host, **more}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))


@pytest.fixture
def submits(driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Submits:
    """What a task starts in the place of Spark, for members of a region that is there."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("SUBMITTED", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))  # Spark's cache of jars is there
    for name in ("SPARK_HOME", "KRB5CCNAME"):
        monkeypatch.delenv(name, raising=False)
    spark_at(monkeypatch, "local[2]")
    return Submits(tmp_path)


def consume(task: FakeTask = TASK, **options: Any) -> KcrConsumeOperator:  # noqa: ANN401
    operator = KcrConsumeOperator(
        task_id=task.task_id, **{"region": "flights", "group_id": "g", "indexes": 0, **options}
    )
    operator.execute.__wrapped__(operator, task_context(task))  # type: ignore[attr-defined]
    return operator


LOCK_IS_FREE = (
    f'{sys.executable} -c "import fcntl, pathlib; '
    "fcntl.flock(open(pathlib.Path.home() / '.ivy2.5.2/.kcr-lock', 'ab'), fcntl.LOCK_EX | fcntl.LOCK_NB)\" 2>/dev/null"
)


def test_spark_fetches_jars_while_no_other_task_does_and_only_until_they_are_there(
    submits: Submits, tmp_path: Path
) -> None:
    submits(
        f"{LOCK_IS_FREE} && exit 7\n"
        "echo ' 12 artifacts copied, 0 already retrieved (60 kB/9 ms)'\n"
        f"tries=0; until {LOCK_IS_FREE}; do tries=$((tries + 1)); [ $tries -lt 100 ] || exit 8; done"
    )
    consume()
    assert list((tmp_path / ".ivy2.5.2").glob(".kcr-?*"))


def test_jars_that_were_not_fetched_are_fetched_alone_again(submits: Submits, tmp_path: Path) -> None:
    submits("exit 1")
    with pytest.raises(AirflowException):
        consume()
    assert [path.name for path in (tmp_path / ".ivy2.5.2").iterdir()] == [".kcr-lock"]


# -- what is started ---------------------------------------------------------------------------------------------------


def test_the_application_is_started_with_its_members_and_the_connector(submits: Submits) -> None:
    consume(indexes="1,0", read_options={"kafka.max.poll.records": "7"}, conf={"spark.executor.memory": "1g"})
    given = submits.arguments()
    at = next(n for n, argument in enumerate(given) if argument.endswith("__main__.py"))
    assert Path(given[at]).is_file()
    assert given[at + 1 :] == [
        *("member", "run", "flights", "--group", "g", "--index", "0,1"),
        *("--read-option", "kafka.max.poll.records=7"),
    ]
    options = list(zip(given[:at:2], given[1:at:2], strict=True))
    assert ("--packages", CONNECTOR) in options
    assert ("--conf", "spark.executor.memory=1g") in options
    assert ("--name", "kcr flights g 0,1") in options


def test_a_jar_is_used_instead_of_the_coordinate(submits: Submits) -> None:
    consume(jars="a.jar,b.jar", packages="org.x:y:1")
    given = submits.arguments()
    assert given[given.index("--jars") + 1] == "a.jar,b.jar"
    assert given[given.index("--packages") + 1] == "org.x:y:1"


TABLE = "{kind: postgres, url: 'postgresql://db/air', table: out}"
LAKE = "{kind: delta, table: /lake/out}"


@pytest.mark.parametrize(
    ("own", "of_another_group", "options", "packages"),
    [
        (TABLE, "", {}, (POSTGRES_DRIVER,)),
        (TABLE, "", {"packages": "org.x:y:1"}, ("org.x:y:1", POSTGRES_DRIVER)),
        (TABLE, "", {"packages": "org.postgresql:postgresql:42.7.1"}, ("org.postgresql:postgresql:42.7.1",)),
        (TABLE, "", {"jars": "all.jar"}, ()),
        ("", LAKE, {}, ()),
        (LAKE, TABLE, {}, ()),
    ],
)
def test_members_are_given_what_their_tables_and_every_groups_checkpoints_are_written_with(
    own: str, of_another_group: str, options: dict[str, Any], packages: tuple[str, ...]
) -> None:
    g, h = (f"sinks: {{out: {sink}}}" if sink else "members: 1" for sink in (own, of_another_group))
    spec = parse(
        "region: flights\nkafka: {bootstrap.servers: 'broker:9092'}\ngroups:\n"
        f"  - {{group_id: g, topics: [t], pipeline: 'm:f', {g}}}\n"
        f"  - {{group_id: h, topics: [t], pipeline: 'm:f', {h}}}\n"
    )
    operator = KcrConsumeOperator(task_id="consume", region="flights", group_id="g", indexes=0, **options)
    assert operator.submission(spec, [GroupId("g")], "members").packages == packages


def test_a_second_try_takes_the_members_over(submits: Submits) -> None:
    consume()
    assert "--takeover" not in submits.arguments()
    consume(FakeTask(task_id="consume", try_number=2))
    assert "--takeover" in submits.arguments()


def test_the_driver_finds_store_and_task_in_its_environment_and_a_session_of_its_own(
    submits: Submits, tmp_path: Path, store_connection: str
) -> None:
    consume()
    found = submits.environment()
    assert found["KCR_STORE_URL"].startswith("postgresql")
    assert found["KCR_TASK_PID"] == str(os.getpid())
    assert found["KCR_TASK_PARENT"] == str(os.getppid())
    assert found["KCR_TASK_REQUEST_ID"] == "flights_consumers/run/consume/1/try 1"
    assert found["KCR_TASK_GONE_DRAIN"] == "30"
    assert found["PYSPARK_DRIVER_PYTHON"]
    assert int((tmp_path / "session").read_text()) != os.getsid(0)
    assert not any("postgresql" in argument or "KCR_" in argument for argument in submits.arguments())


def test_on_yarn_nothing_of_it_gets_into_the_command_line(submits: Submits, monkeypatch: pytest.MonkeyPatch) -> None:
    # The provider writes `env_vars` into the command there.
    spark_at(monkeypatch, "yarn")
    consume(env_vars={"COLOUR": "red"})
    assert "spark.yarn.appMasterEnv.COLOUR=red" in submits.arguments()
    assert not any("postgresql" in argument or "KCR_" in argument for argument in submits.arguments())
    assert submits.environment()["KCR_STORE_URL"]


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"env_vars": {"KCR_STORE_URL": "postgresql://me:pw@store/kcr"}}, "env_vars .*: KCR_STORE_URL"),
        ({"conf": {"spark.hadoop.fs.s3a.secret.key": "pw"}}, r"conf .*: spark\.hadoop\.fs\.s3a\.secret\.key"),
        ({"read_options": {"kafka.x": "https://me:pw@h"}}, r"read_options .*: kafka\.x"),
        ({"repositories": "https://me:pw@maven.example"}, "repositories hold"),
    ],
)
def test_a_secret_is_refused_where_the_dag_is_read_before_it_is_stored(options: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigurationError, match=name) as raised:
        KcrConsumeOperator(task_id="consume", region="r", group_id="g", indexes=0, **options)
    assert "pw" not in raised.value.message


@pytest.mark.parametrize("place", ["conf", "env_vars", "read_options"])
def test_a_secret_that_a_template_brings_is_refused_before_anything_starts(submits: Submits, place: str) -> None:
    options: dict[str, Any] = {
        "region": "flights",
        "group_id": "g",
        "indexes": 0,
        place: {"kafka.x": "{{ var.value.x }}"},
    }
    operator = KcrConsumeOperator(task_id="consume", **options)
    setattr(operator, place, {"kafka.x": "https://me:pw@h"})  # rendered
    with pytest.raises(AirflowFailException, match=rf"{place} holds what may be a secret: kafka\.x") as raised:
        operator.execute.__wrapped__(operator, task_context(TASK))  # type: ignore[attr-defined]
    assert "pw" not in str(raised.value)
    assert not submits.was_called


def test_it_can_be_mapped_over_its_indexes_and_a_dag_of_it_is_stored_without_a_secret() -> None:
    with DAG("flights_consumers", schedule=None) as dag:
        KcrConsumeOperator.partial(task_id="consume", region="flights", group_id="g", conn_id="spark").expand(
            indexes=[[0], [1]]
        )
    mapped = dag.get_task("consume")
    assert isinstance(mapped, MappedOperator)
    text = json.dumps(LazyDeserializedDAG.from_dag(dag).data)
    assert "indexes" in text
    assert {link.name for link in mapped.operator_extra_links} == {"Region", "Spark UI"}


def test_every_field_that_names_something_is_templated() -> None:
    assert {"region", "group_id", "indexes", "kcr_conn_id", "conf"} <= set(KcrConsumeOperator.template_fields)


# -- how it ends -------------------------------------------------------------------------------------------------------


def test_it_succeeds_when_the_region_has_stopped(driver: Driver, submits: Submits) -> None:
    assert driver.region.state == "stopped"
    consume()


def test_an_application_that_was_told_to_end_while_the_region_goes_on_is_tried_again(
    driver: Driver, submits: Submits
) -> None:
    driver.up()
    with pytest.raises(AirflowException, match="told to end while region flights is running") as raised:
        consume()
    assert not isinstance(raised.value, AirflowFailException)


@pytest.mark.parametrize(
    ("body", "final", "message"),
    [
        ("echo 'kcr: the pipeline does not import'; exit 2", True, "the pipeline does not import"),
        ("echo 'kcr: g[0] is held by somebody'; exit 3", True, "g[0] is held by somebody"),
        ("echo 'kcr: the store does not answer'; exit 4", False, "the store does not answer"),
        ("echo 'java.lang.Error'; exit 1", False, "ended with status 1"),
        ("exit 137", False, "was ended by SIGKILL"),
        ("exit 143", False, "was ended by SIGTERM"),
        ("kill -9 $$", False, "was ended by SIGKILL"),
    ],
)
def test_its_exit_status_says_whether_a_retry_can_help(submits: Submits, body: str, final: bool, message: str) -> None:
    submits(body)
    with pytest.raises(AirflowException) as raised:
        consume()
    assert isinstance(raised.value, AirflowFailException) is final
    assert message in str(raised.value)


def test_spark_s_last_words_are_shown_only_where_it_fails(submits: Submits, capsys: pytest.CaptureFixture[str]) -> None:
    submits("echo '26/01/01 12:00:00 INFO SparkContext: hello'; exit 0")
    consume()
    assert "hello" not in capsys.readouterr().out
    submits("echo '26/01/01 12:00:00 INFO SparkContext: hello'; exit 1")
    with pytest.raises(AirflowException):
        consume()
    assert "Spark: 26/01/01 12:00:00 INFO SparkContext: hello" in capsys.readouterr().out


def test_the_application_is_told_by_xcom_as_soon_as_it_tells_of_itself(submits: Submits) -> None:
    told = {"application": "local-1", "ui": "http://here:4040", "host": "here", "pid": 1, "started": 5, "members": {}}
    submits(f"echo 'kcr-application: {json.dumps(told)}'; echo 'kcr-application: broken'")
    task = FakeTask(task_id="consume")
    consume(task)
    assert task.xcoms["kcr_application"] == told
    assert task.xcoms["kcr_spark_ui"] == "http://here:4040"


# -- what can't work ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"region": "nowhere"}, "nowhere"),
        ({"group_id": "other"}, "has no group 'other'; it has: g"),
        ({"indexes": [0, 2]}, "has 2 member"),
        ({"indexes": "x"}, "names no members"),
        ({"conf": {"spark.speculation": "true"}}, "spark.speculation"),
        ({"kcr_conn_id": "nobody"}, "there is no Airflow connection 'nobody'"),
        ({"conn_id": "nobody"}, "there is no Airflow connection 'nobody'"),
        ({"use_krb5ccache": True}, "spark-submit can't be called as asked: KRB5CCNAME"),
    ],
)
def test_what_can_t_work_fails_at_once_and_is_not_tried_again(
    submits: Submits, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(AirflowFailException) as raised:
        consume(**options)
    assert message in str(raised.value)
    assert not submits.was_called


def test_a_spark_home_that_leads_nowhere_fails_at_once(submits: Submits, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "/nowhere")
    with pytest.raises(AirflowFailException, match="SPARK_HOME is /nowhere"):
        consume()


@pytest.mark.parametrize("said", ["application", "application_args", "name", "java_class", "durable"])
def test_what_the_operator_says_itself_can_t_be_said(said: str) -> None:
    options: dict[str, Any] = {said: "x"}
    with pytest.raises(ConfigurationError, match=f"says {said} itself"):
        KcrConsumeOperator(task_id="consume", region="flights", group_id="g", indexes=0, **options)


@pytest.mark.parametrize(("given", "found"), [(2, (2,)), ([1, 0], (0, 1)), ("0,1", (0, 1)), ("[2, 1]", (1, 2))])
def test_indexes_are_read_however_they_are_written(given: object, found: tuple[int, ...]) -> None:
    assert indexes_of(given) == found  # type: ignore[arg-type]


@pytest.mark.parametrize("given", ["", [], [0, 0], -1, "a", None, [None]])
def test_indexes_that_name_nobody_are_refused(given: object) -> None:
    with pytest.raises(ConfigurationError, match="names no members"):
        indexes_of(given)  # type: ignore[arg-type]


# -- in a cluster ------------------------------------------------------------------------------------------------------


def deferred(**options: Any) -> tuple[TaskDeferred, FakeTask]:  # noqa: ANN401
    task = FakeTask(task_id="consume")
    with pytest.raises(TaskDeferred) as raised:
        consume(task, deploy_mode="cluster", **options)
    return raised.value, task


@pytest.fixture
def yarn(monkeypatch: pytest.MonkeyPatch) -> None:
    spark_at(monkeypatch, "yarn")


LAST = "flights_checkpoint/scheduled__2026-01-01T12:05:00+00:00/consume/-1/try 1"


def test_in_a_cluster_the_task_hands_the_application_over_and_waits_without_a_slot(
    driver: Driver, submits: Submits, yarn: None
) -> None:
    submits("echo 'INFO Client: Submitted application application_17_0042'")
    driver.up()
    raised, task = deferred(indexes=[0, 1])
    given = submits.arguments()
    assert given[given.index("--deploy-mode") + 1] == "cluster"
    assert "spark.yarn.submit.waitAppCompletion=false" in given
    assert "spark.yarn.am.waitTime=600s" in given
    assert "spark.yarn.tags=kcr-application" in given
    assert "spark.yarn.appMasterEnv.BASH_ENV=yarn_container.sh" in given
    assert Path(given[given.index("--files") + 1]).name == "yarn_container.sh"
    assert not any("KCR_" in argument or "postgresql" in argument for argument in given)
    assert task.xcoms["kcr_application"] == {"application": "application_17_0042"}
    assert isinstance(raised.trigger, RegionTrigger)
    assert raised.trigger.driver is None  # YARN's client did not say where the resource manager is
    assert raised.trigger.waiting_for == {
        "kind": "members_ended",
        "group": "g",
        "indexes": [0, 1],
        "before": [1, 1],
        "come_by": raised.trigger.waiting_for["come_by"],
        "last_request": LAST,
    }
    came = datetime.fromisoformat(raised.trigger.waiting_for["come_by"]) - driver.store.read(driver.name)[1]
    assert timedelta(minutes=29) < came <= timedelta(minutes=30)
    assert given[-2:] == ["--until-request", LAST]
    assert raised.method_name == "resume"


def test_what_a_user_gives_to_yarn_stays(driver: Driver, submits: Submits, yarn: None) -> None:
    submits("echo 'INFO Client: Submitted application application_17_0042'")
    driver.up()
    conf = {"spark.yarn.tags": "etl,nightly", "spark.yarn.appMasterEnv.BASH_ENV": "/etc/ours.sh"}
    deferred(indexes=[0, 1], conf=conf, files="/etc/ours.sh")
    given = submits.arguments()
    assert "spark.yarn.tags=etl,nightly,kcr-application" in given
    assert "spark.yarn.appMasterEnv.BASH_ENV=/etc/ours.sh" in given
    assert given[given.index("--files") + 1].startswith("/etc/ours.sh,")


@pytest.mark.parametrize(
    "said",
    [
        "Invalid maximum heap size: -Xmxzebra",
        'Exception in thread "main" org.apache.spark.SparkException: Executor memory must be a positive number',
        "Unrecognized option: -Xxzebra",
    ],
)
def test_settings_that_java_or_spark_find_impossible_are_not_tried_again(
    driver: Driver, submits: Submits, said: str
) -> None:
    submits(f"cat <<'END'\n{said}\nEND\nexit 1")
    driver.up()
    with pytest.raises(AirflowFailException, match=said.rpartition("Exception: ")[2]):
        consume(indexes=0)


YARNS = """\
:: resolving dependencies ::
26/11/22 21:06:37 INFO Client: Uploading resource /opt/application_1_2/application_x.zip -> hdfs://nn/application_17_0042/x.zip
26/11/22 21:06:37 INFO Client: Submitting application application_17_0042 to ResourceManager
26/11/22 21:06:37 INFO YarnClientImpl: Submitted application application_17_0042
26/11/22 21:06:37 INFO Client:
  client token: N/A
  tracking URL: http://rm:8088/proxy/application_17_0042/
  user: root
26/11/22 21:06:37 INFO ShutdownHookManager: Shutdown hook called
"""


def test_of_what_yarns_client_says_the_name_and_the_page_are_kept_and_shown_once(
    driver: Driver, submits: Submits, yarn: None
) -> None:
    submits(f"cat <<'END'\n{YARNS}END")
    driver.up()
    with capture_logs() as lines:
        raised, task = deferred(indexes=[0, 1])
    page = "http://rm:8088/proxy/application_17_0042/"
    kept = task.xcoms["kcr_application"]
    assert isinstance(kept, dict)
    assert (kept["application"], kept["ui"], task.xcoms["kcr_spark_ui"]) == ("application_17_0042", page, page)
    said = [str(line["event"]) % line.get("positional_args", ()) for line in lines]
    assert said.count("Identified spark application id: application_17_0042") == 1
    assert isinstance(raised.trigger, RegionTrigger)
    assert raised.trigger.driver == {"manager": "http://rm:8088", "application": "application_17_0042"}
    assert "application_17_0042, http://rm:8088/proxy/application_17_0042/" in said
    assert not any("token" in line or "resolving" in line or "ShutdownHook" in line for line in said)


@pytest.mark.parametrize(("status", "error"), [("timed_out", AirflowException), ("refused", AirflowFailException)])
def test_what_the_trigger_says_is_how_the_task_ends(status: str, error: type[AirflowException]) -> None:
    operator = KcrConsumeOperator(task_id="consume", region="flights", group_id="g", indexes=0)
    operator.resume(task_context(TASK), {"status": "reached"})
    with pytest.raises(error, match="gone"):
        operator.resume(task_context(TASK), {"status": status, "detail": "gone"})


def test_a_cluster_that_refuses_the_application_fails_the_task(submits: Submits, yarn: None) -> None:
    submits("echo 'Exception in thread main: queue is full'; exit 1")
    with pytest.raises(AirflowException, match="ended with status 1"):
        consume(deploy_mode="cluster")


def test_a_standalone_cluster_runs_no_python_driver(
    driver: Driver, submits: Submits, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark_at(monkeypatch, "spark://master:7077")
    with pytest.raises(AirflowFailException, match="spark://master:7077 runs no Python driver in the cluster"):
        consume(deploy_mode="cluster")


@pytest.mark.parametrize(
    ("connection", "message"),
    [
        ({"host": "k8s://https://cluster"}, "install apache-airflow-providers-cncf-kubernetes"),
        ({"host": "yarn", "extra": {"spark-binary": "rm"}}, "Airflow connection spark_default: The spark-binary extra"),
        ({"host": "yarn", "extra": {"spark-home": "/opt"}}, "The `spark-home` extra is not allowed"),
    ],
)
def test_a_connection_that_the_provider_refuses_is_not_tried_again(
    submits: Submits, monkeypatch: pytest.MonkeyPatch, connection: dict[str, Any], message: str
) -> None:
    spark_at(monkeypatch, **connection)
    # As where the provider for Kubernetes is not installed.
    monkeypatch.delattr("airflow.providers.apache.spark.hooks.spark_submit.kube_client")
    with pytest.raises(AirflowFailException) as raised:
        consume()
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("options", "program"),
    [
        ({}, f"local://{airflow_kcr.__path__[0]}/__main__.py"),
        ({"program": "local:///opt/kcr/__main__.py"}, "local:///opt/kcr/__main__.py"),
    ],
)
def test_on_kubernetes_the_program_is_one_of_the_image_and_the_store_s_address_a_secret_of_the_cluster(
    driver: Driver, submits: Submits, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], program: str
) -> None:
    spark_at(monkeypatch, "k8s://https://cluster", extra={"namespace": "kcr"})
    submits(
        "echo 'INFO LoggingPodStatusWatcherImpl: Deployed Spark application kcr with application ID spark-1 and "
        "submission ID kcr:kcr-flights-driver into Kubernetes'"
    )
    driver.up()
    reference = "spark.kubernetes.driver.secretKeyRef.KCR_STORE_URL"
    _, task = deferred(conf={reference: "kcr:store-url"}, **options)
    assert task.xcoms["kcr_application"] == {"application": "kcr-flights-driver"}
    given = submits.arguments()
    assert program in given
    assert f"{reference}=kcr:store-url" in given
    assert "spark.kubernetes.submission.waitAppCompletion=false" in given
    assert not any("postgresql" in argument for argument in given)
    # Spark would have the driver started with it, in an image that has other paths.
    assert "PYSPARK_DRIVER_PYTHON" not in submits.environment()


def test_on_kubernetes_a_try_removes_what_the_lost_drivers_of_earlier_ones_have_left(
    driver: Driver, submits: Submits, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    submits("echo 'INFO X: Deployed Spark application kcr with submission ID kcr:kcr-new-driver into Kubernetes'")
    driver.up()
    with kubernetes_pods(tmp_path) as pods:
        monkeypatch.setenv("KUBECONFIG", str(pods.api.client_configuration(tmp_path, SPACE, "kcr-submit")))
        spark_at(monkeypatch, f"k8s://{pods.api.address}")
        pods.driver("kcr-failed")
        pods.end(1, name="kcr-failed")
        pods.driver("kcr-stuck")
        pods.wait_for("CreateContainerConfigError", "secret not found", "kcr-stuck")
        for name in ("kcr-running", "kcr-pending", "kcr-succeeded"):
            pods.driver(name)
        pods.run("kcr-running")
        pods.find_no_room("no CPU", "kcr-pending")
        pods.end(0, name="kcr-succeeded")
        pods.driver("kcr-other-failed", "kcr flights g 1")
        pods.end(1, name="kcr-other-failed")
        raised, _ = deferred(conf={"spark.kubernetes.namespace": SPACE})
        assert pods.left() == {"kcr-running", "kcr-pending", "kcr-succeeded", "kcr-other-failed"}
        label = label_of(NAME)
        assert f"spark.kubernetes.driver.label.kcr-application={label}" in submits.arguments()
        assert isinstance(raised.trigger, RegionTrigger)
        assert raised.trigger.driver == {
            "server": pods.api.address,
            "namespace": SPACE,
            "pod": "kcr-new-driver",
            "application": label,
        }


def test_a_kill_on_the_way_to_the_cluster_ends_the_hand_over(
    driver: Driver, submits: Submits, tmp_path: Path, yarn: None
) -> None:
    driver.up()
    submits('touch "$SUBMITTED/at-work"; exec sleep 60')
    operator = KcrConsumeOperator(task_id="consume", region="flights", group_id="g", indexes=0, deploy_mode="cluster")
    at_work = tmp_path / "at-work"
    before = signal.signal(signal.SIGALRM, lambda number, frame: operator.on_kill() if at_work.exists() else None)
    signal.setitimer(signal.ITIMER_REAL, 0.5, 0.5)
    try:
        with pytest.raises(AirflowException, match="was ended by SIGTERM"):
            operator.execute.__wrapped__(operator, task_context(TASK))  # type: ignore[attr-defined]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_the_store_s_address_is_no_setting_of_spark(submits: Submits, yarn: None) -> None:
    with pytest.raises(AirflowFailException, match="by the cluster's own secrets"):
        consume(deploy_mode="cluster", conf={"spark.yarn.appMasterEnv.KCR_STORE_URL": "postgresql://store/kcr"})


# -- a kill ------------------------------------------------------------------------------------------------------------


def test_a_kill_asks_the_region_for_a_checkpoint_and_does_not_end_the_application(
    driver: Driver, submits: Submits, tmp_path: Path
) -> None:
    driver.up()
    driver.process(driver.member(0), width=10)
    submits('touch "$SUBMITTED/at-work"; while [ ! -e "$SUBMITTED/go-on" ]; do sleep 0.1; done')
    operator = KcrConsumeOperator(task_id="consume", region="flights", group_id="g", indexes=0)

    # As the task runner does: in the handler of the signal, while `execute` waits for a line.
    def on_term(number: int, frame: object) -> None:
        operator.on_kill()
        (tmp_path / "go-on").touch()

    before = signal.signal(signal.SIGALRM, on_term)
    signal.setitimer(signal.ITIMER_REAL, 1.5)
    try:
        with pytest.raises(AirflowException, match="told to end while"):
            operator.execute.__wrapped__(operator, task_context(TASK))  # type: ignore[attr-defined]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    request = driver.region.requests[RequestId("flights_consumers/run/consume/1/try 1")]
    assert (request.purpose, request.requester.dag_id) == ("drain", "flights_consumers")


def test_a_kill_before_anything_was_started_has_nothing_to_tell() -> None:
    KcrConsumeOperator(task_id="consume", region="flights", group_id="g", indexes=0).on_kill()
