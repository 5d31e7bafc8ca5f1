"""Owns the OpenTelemetry span of a run: its own trace, linked to the one in which its timer was armed.

OpenTelemetry is imported only when it is used, so pods without it do not need the extra `otel`.
"""

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Self

from timers.core.model import Timer
from timers.core.outcome import Exhausted, Failed, Outcome
from timers.logs import get_logger

if TYPE_CHECKING:
    from opentelemetry.trace import Link, Span, TracerProvider

ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
"""OpenTelemetry's own settings. If one of them is set, spans are sent there."""

_log = get_logger("timers.spans")


class Spans:
    """Makes the spans of a pod's runs. `close` sends the spans that are still unsent, which may take seconds."""

    def __init__(self, provider: "TracerProvider", close: Callable[[], object] = lambda: None) -> None:
        self._tracer = provider.get_tracer("timers")
        self.close = close

    @classmethod
    def configured(cls, pod: str) -> Self | None:
        """Spans for the provider that the processors' code or `opentelemetry-instrument` has set, else for the endpoint
        in the environment. None if there is neither, or if the packages that it needs are missing."""
        if "opentelemetry.trace" in sys.modules:
            from opentelemetry import trace  # noqa: PLC0415 (see above)

            provider = trace.get_tracer_provider()
            if not isinstance(provider, trace.ProxyTracerProvider):
                return cls(provider)
        if any(map(os.environ.get, ENDPOINTS)) and os.environ.get("OTEL_TRACES_EXPORTER", "otlp") == "otlp":
            return cls._exporting(pod)
        return None

    @classmethod
    def _exporting(cls, pod: str) -> Self | None:
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
            from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
            from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
            from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
        except ImportError as error:
            _log.warning("no traces: the extra is missing", install="redis-timers[otel]", reason=str(error))
            return None
        named = {"service.name": os.environ.get("OTEL_SERVICE_NAME", "timers"), "service.instance.id": pod}
        provider = TracerProvider(resource=Resource.create(named))
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        return cls(provider, provider.shutdown)

    def begin(self, timer: Timer, processor: str) -> "Span":
        """Start the span of a timer's run. What the run calls from this context on belongs to it."""
        from opentelemetry import context, trace  # noqa: PLC0415

        span = self._tracer.start_span(
            f"run {processor}",
            context.Context(),  # not a child of whatever claimed the timer
            trace.SpanKind.CONSUMER,
            {
                "timers.prefix": timer.prefix,
                "timers.id": timer.id,
                "timers.occurrence": timer.occurrence,
                "timers.attempt": timer.attempt,
                "timers.token": timer.token,
                "timers.pod": timer.lease.pod if timer.lease else "",
            },
            _links(timer.traceparent),
        )
        context.attach(trace.set_span_in_context(span))  # the context ends with the run
        return span


def end_span(span: "Span", kind: str, outcome: Outcome | None) -> None:
    from opentelemetry.trace import StatusCode  # noqa: PLC0415

    span.set_attribute("timers.outcome", kind)
    if isinstance(outcome, Failed):
        attributes = {"type": outcome.error, "message": outcome.reason, "stacktrace": outcome.detail}
        span.add_event("exception", {f"exception.{name}": text for name, text in attributes.items()})
    if isinstance(outcome, Failed | Exhausted) or outcome is None:
        span.set_status(StatusCode.ERROR, "the lease was lost" if outcome is None else outcome.reason)
    span.end()


def _links(traceparent: str | None) -> "list[Link]":
    from opentelemetry.trace import Link, get_current_span  # noqa: PLC0415
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

    if traceparent is None:
        return []
    armed_in = TraceContextTextMapPropagator().extract({"traceparent": traceparent})
    return [Link(get_current_span(armed_in).get_span_context())]
