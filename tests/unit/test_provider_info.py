from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from importlib.metadata import entry_points
from importlib.util import find_spec
from inspect import isabstract
from itertools import chain
from pathlib import Path
from typing import Any

import airflow
import jsonschema
import pytest
from airflow.providers.common.compat.sdk import conf
from airflow.providers_manager import ProvidersManager
from airflow.sdk import BaseNotifier, BaseOperator, BaseOperatorLink, BaseSensorOperator

import airflow_kcr
from airflow_kcr.hooks.assets import create_asset, sanitize_uri
from airflow_kcr.hooks.kcr import KcrHook
from airflow_kcr.provider_info import get_provider_info
from tests.support import airflow_pages

INFO = get_provider_info()
AIRFLOW = Path(airflow.__file__).parent
PACKAGES = ("operators", "sensors", "hooks", "triggers")


def schema(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((AIRFLOW / name).read_text(encoding="utf-8"))
    return found


def listed(package: str) -> list[str]:
    return [module for part in INFO[package] for module in part["python-modules"]]


def imported(path: str) -> object:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def test_airflow_s_schema_of_what_a_provider_says_accepts_it() -> None:
    jsonschema.validate(INFO, schema("provider_info.schema.json"))
    assert set(INFO) <= set(schema("provider_info.schema.json")["properties"])


def test_the_connection_form_is_what_airflow_s_stricter_schema_asks_for() -> None:
    jsonschema.validate(INFO["connection-types"], schema("provider.yaml.schema.json")["properties"]["connection-types"])


def test_every_field_of_the_form_is_one_that_is_read() -> None:
    assert set(INFO["connection-types"][0]["conn-fields"]) == {"sslmode", "sslrootcert", "connect_timeout"}


def test_every_notifier_is_one() -> None:
    for path in INFO["notifications"]:
        notifier = imported(path)
        assert isinstance(notifier, type)
        assert issubclass(notifier, BaseNotifier)


def test_airflow_finds_the_provider_and_its_plugin_by_their_entry_points() -> None:
    (provider,) = entry_points(group="apache_airflow_provider", name="provider_info").select(
        module=get_provider_info.__module__
    )
    assert provider.load()() == INFO
    assert {point.value for point in entry_points(group="airflow.plugins", name="kcr")} == {
        "airflow_kcr.plugins:KcrPlugin"
    }


def runtime_providers() -> Any:  # noqa: ANN401 (of two classes)
    """What tasks know of providers; up to Airflow 3.1 all processes know the same."""
    if find_spec("airflow.sdk.providers_manager_runtime") is None:
        return ProvidersManager()  # type: ignore[no-untyped-call]
    from airflow.sdk.providers_manager_runtime import ProvidersManagerTaskRuntime

    return ProvidersManagerTaskRuntime()  # type: ignore[no-untyped-call]


def test_airflow_knows_the_connection_type_the_links_and_the_scheme() -> None:
    runtime = runtime_providers()
    hook = runtime.hooks["kcr"]
    assert hook is not None
    assert hook.hook_class_name == f"{KcrHook.__module__}.{KcrHook.__qualname__}"
    assert hook.hook_name == KcrHook.hook_name
    assert hook.connection_id_attribute_name == KcrHook.conn_name_attr
    assert hook.connection_testable
    assert runtime.asset_uri_handlers["kcr"] is sanitize_uri
    assert runtime.asset_factories["kcr"] is create_asset
    assert set(INFO["extra-links"]) <= set(ProvidersManager().extra_links_class_names)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("package", ["operators", "sensors"])
def test_every_module_with_a_class_for_dag_authors_is_listed(package: str) -> None:
    there = (Path(airflow_kcr.__file__).parent / package).glob("*.py")
    public = {f"airflow_kcr.{package}.{p.stem}" for p in there if re.search(r"^class Kcr", p.read_text("utf-8"), re.M)}
    assert public == set(listed(package))


@pytest.mark.parametrize(("package", "restore_point"), [("operators", BaseOperator), ("sensors", BaseSensorOperator)])
def test_every_listed_module_has_public_classes_of_its_kind(package: str, restore_point: type) -> None:
    for module in listed(package):
        found = importlib.import_module(module)
        public = [
            c
            for c in vars(found).values()
            if isinstance(c, type) and c.__module__ == module and issubclass(c, restore_point) and not isabstract(c)
        ]
        assert public, module
        assert all(c.__name__.startswith("Kcr") for c in public), module


def test_every_command_has_one_operator_or_a_reason_for_having_none() -> None:
    commands = [command for _, command in airflow_pages.operators() if command is not None]
    assert sorted([*commands, *chain(*airflow_pages.WITHOUT_OPERATOR.values())]) == sorted(
        airflow_pages.every_command()
    )


def test_every_operator_and_sensor_is_in_a_dag_that_a_real_airflow_runs() -> None:
    top = Path(__file__).parents[2]
    run = [*(top / "tests" / "integration" / "airflow").glob("*.py"), *(top / "dags_example").glob("*.py")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in [*run, top / "airflow_kcr" / "dags.py"])
    names = {
        name
        for package in ("operators", "sensors")
        for module in listed(package)
        for name in vars(importlib.import_module(module))
        if re.fullmatch(r"Kcr\w+(Operator|Sensor)", name)
    }
    assert len(names) > 20
    assert {name for name in names if f"{name}(" not in text and f"{name}.partial(" not in text} == set()


def test_every_class_and_function_that_is_named_exists() -> None:
    for path in INFO["extra-links"]:
        link = imported(path)
        assert isinstance(link, type)
        assert issubclass(link, BaseOperatorLink)
    for uri in INFO["asset-uris"]:
        assert callable(imported(uri["handler"]))
        assert callable(imported(uri["factory"]))


# -- configuration ----------------------------------------------------------------------------------------------------


OPTIONS: dict[str, dict[str, str]] = INFO["config"]["kcr"]["options"]


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_has_its_default_and_is_read_somewhere(name: str) -> None:
    default = OPTIONS[name]["default"]
    ProvidersManager().initialize_providers_configuration()  # type: ignore[no-untyped-call] # older ones begin without
    assert conf.get("kcr", name) == default
    assert OPTIONS[name]["type"] != "float" or conf.getfloat("kcr", name) == float(default)
    sources = (Path(airflow_kcr.__file__).parent).rglob("*.py")
    readers = [p.name for p in sources if f'"{name}"' in p.read_text("utf-8") and p.name != "provider_info.py"]
    assert readers, f"nothing reads [kcr] {name}"


# -- what an import costs ---------------------------------------------------------------------------------------------

HEAVY = (
    "confluent_kafka",
    "pyspark",
    "py4j",
    "psycopg",
    "psycopg2",
    "alembic",
    "pandas",
    "numpy",
    "croniter",
    "rich",
    "typer",
    "fastapi",
    "jinja2.sandbox",
    "airflow_kcr.plugins.page",
    "airflow_kcr.store",
    "airflow_kcr.api",
    "airflow_kcr.kafka",
    "airflow_kcr.runtime",
    "airflow_kcr.embedded",
    "airflow_kcr.cli",
    "airflow_kcr.protocol.region.rows",  # a hundred small classes
)
"""What only a task that runs may load."""

IMPORT_EACH = """
import importlib, json, sys
import airflow.sdk
from airflow.providers.common.compat.sdk import conf
from airflow.sdk import BaseOperator, BaseSensorOperator, BaseHook, BaseOperatorLink, Asset
import airflow.triggers.base, airflow.providers.standard.operators.hitl
{more}
before, new = set(sys.modules), {{}}
for name in {modules!r}:
    importlib.import_module(name)
    new[name] = sorted(set(sys.modules) - before)
    for module in new[name]:
        before.add(module)
print(json.dumps(new))
"""
SPARK = "import airflow.providers.apache.spark.operators.spark_submit"


def test_importing_an_operator_loads_no_library_that_only_a_running_task_needs() -> None:
    modules = [
        "airflow_kcr.provider_info",
        "airflow_kcr.plugins",
        *(module for package in PACKAGES for module in sorted(listed(package))),
        "airflow_kcr.hooks.assets",
        "airflow_kcr.hooks.links",
    ]
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", IMPORT_EACH.format(modules=modules, more=SPARK)],
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ran.returncode == 0, ran.stderr
    new: dict[str, list[str]] = json.loads(ran.stdout.splitlines()[-1])  # older ones log at their import
    assert list(new) == modules
    for module, loaded in new.items():
        heavy = [name for name in loaded if any(name == h or name.startswith(f"{h}.") for h in HEAVY)]
        assert not heavy, f"importing {module} loads {heavy[:5]}"


def test_what_airflow_reads_of_the_provider_needs_no_airflow() -> None:
    look = "import sys, airflow_kcr.provider_info as p; p.get_provider_info(); print('airflow' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", look], check=True, capture_output=True, text=True, timeout=500)
    assert ran.stdout.strip() == "False"
