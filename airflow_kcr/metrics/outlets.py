"""The ways out of a process for declared metrics: Prometheus asks for them, and OpenTelemetry has them sent.

Each reads the facts in a thread of its own, and nothing waits for it: an end point that is taken, away or hangs is told
in one line.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.metrics.declared import Metric

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Observation
    from opentelemetry.sdk.metrics import MeterProvider
    from prometheus_client.metrics_core import Metric as Family

F = TypeVar("F")

OTLP: Final = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
"""The variables of OpenTelemetry that name where metrics are sent to; one is enough."""

LAST_EXPORT: Final = 1_000
"""Milliseconds that the end of a process waits for an OTLP end point."""

_LOG = logging.getLogger(__name__)


class Collector(Protocol):
    """What Prometheus asks."""

    def collect(self) -> Iterable[Family]:
        """Return every metric with its values."""
        ...


def families(metrics: Iterable[Metric[F]], facts: Iterable[F]) -> Iterator[Family]:
    """Yield every metric as `prometheus_client` has it, with the values that facts have for it."""
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

    known = tuple(facts)
    for metric in metrics:
        made = CounterMetricFamily if metric.is_counter else GaugeMetricFamily
        family = made(metric.name, metric.help, labels=metric.labels)
        for one in known:
            for labels, value in metric.read(one):
                family.add_metric(labels, value)
        yield family


def serve(collector: Collector, port: int) -> Callable[[], None]:
    """Serve metrics over HTTP, at `/metrics` of any address of this host; return what ends that.

    Args:
        collector: asked at each scrape.
        port: 0: any that is free; the log names it.

    Raises:
        ConfigurationError: the port is taken.
        ModuleNotFoundError: `prometheus_client` is not installed.
    """
    from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    try:
        server, thread = start_http_server(port, registry=registry)
    except OSError as error:
        raise ConfigurationError(f"port {port} can't be served: {error.strerror}; choose another one") from None
    _LOG.info("metrics are served at port %d", server.server_port)

    def end() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return end


def push(
    metrics: Iterable[Metric[F]], facts: Callable[[], Iterable[F]], environ: Mapping[str, str] = os.environ
) -> Callable[[], None]:
    """Have OpenTelemetry send metrics; return what ends that.

    Where the process has a meter provider already, by Airflow or the user, it sends them as it sends its own metrics.
    Else one is made if a variable of `OTLP` is set, which sends every minute.

    Args:
        metrics: which.
        facts: asked each time.
        environ: where the variables are looked up; OpenTelemetry itself reads those of the process.

    Raises:
        ModuleNotFoundError: OpenTelemetry's SDK or its OTLP exporter over HTTP is not installed.
    """
    found = _configured()
    if found is not None:
        asked = [facts]
        _declare(found, metrics, lambda: asked[0]() if asked else ())
        return asked.clear  # the provider goes on, without values: an instrument can't be taken from it
    if not any(environ.get(name) for name in OTLP):
        return lambda: None
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    provider = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())], shutdown_on_exit=False)
    _declare(provider, metrics, facts)
    return partial(provider.shutdown, LAST_EXPORT)


def _configured() -> MeterProvider | None:
    """Return the meter provider of the process; None: it has none that sends anything."""
    try:
        from opentelemetry.metrics import get_meter_provider
        from opentelemetry.sdk.metrics import MeterProvider
    except ModuleNotFoundError:
        return None
    found = get_meter_provider()
    return found if isinstance(found, MeterProvider) else None


def _declare(provider: MeterProvider, metrics: Iterable[Metric[F]], facts: Callable[[], Iterable[F]]) -> None:
    meter = provider.get_meter("airflow_kcr")
    for metric in metrics:
        create = meter.create_observable_counter if metric.is_counter else meter.create_observable_gauge
        create(metric.name, [partial(_observed, metric, facts)], description=metric.help)


def _observed(metric: Metric[F], facts: Callable[[], Iterable[F]], _: CallbackOptions) -> Iterable[Observation]:
    from opentelemetry.metrics import Observation

    return [
        Observation(value, dict(zip(metric.labels, labels, strict=True)))
        for one in facts()
        for labels, value in metric.read(one)
    ]


@dataclass(frozen=True, slots=True)
class _Asked(Generic[F]):
    """Answers Prometheus from facts as they are now."""

    metrics: Iterable[Metric[F]]
    facts: Callable[[], Iterable[F]]

    def collect(self) -> Iterable[Family]:
        """Return every metric with its values."""
        return families(self.metrics, self.facts())


@contextmanager
def published(metrics: Iterable[Metric[F]], facts: Callable[[], Iterable[F]], port: int | None) -> Iterator[None]:
    """Let metrics out until the end of the block, by each way that is asked for and works.

    Args:
        metrics: which.
        facts: what they are read from; asked in other threads, so it must not wait.
        port: where Prometheus asks; None: nowhere.
    """
    with ExitStack() as stack:
        starts = [partial(push, metrics, facts)]
        if port is not None:
            starts.append(partial(serve, _Asked(metrics, facts), port))
        for start in starts:
            try:
                stack.callback(start())
            except (ConfigurationError, ModuleNotFoundError) as error:
                _LOG.warning("no metrics by this way, the members go on: %s", error)
        yield
