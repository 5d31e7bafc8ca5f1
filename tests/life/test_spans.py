"""A span for each run of a pod that traces."""

from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.engine.fleet import Calls, Fleet, Held
from tests.waiting import eventually
from timers import Context, Rearm, Timer, processor
from timers.engine.spans import Spans

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"


@pytest.fixture
def kept() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def spans(kept: InMemorySpanExporter) -> Spans:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    return Spans(provider)


async def ended(kept: InMemorySpanExporter, number: int) -> tuple[ReadableSpan, ...]:
    """The spans, in the order of their ends, once there are this many."""

    async def look() -> bool:
        return len(kept.get_finished_spans()) >= number

    await eventually(look, f"{number} spans have ended")
    return kept.get_finished_spans()


def told(span: ReadableSpan) -> tuple[Any, ...]:
    return span.name, *(dict(span.attributes or {})[f"timers.{name}"] for name in ("id", "attempt", "outcome"))


async def test_a_run_has_its_own_trace_linked_to_the_one_that_armed_its_timer(
    fleet: Fleet, spans: Spans, kept: InMemorySpanExporter
) -> None:
    await fleet.pod(Calls(), spans=spans)
    await fleet.client.create("note", "x", delay=0, traceparent=TRACEPARENT)
    (span,) = await ended(kept, 1)
    assert told(span) == ("run note", "x", 1, "done")
    assert (span.kind, span.parent, span.status.is_ok) == (trace.SpanKind.CONSUMER, None, True)
    (link,) = span.links
    assert (f"{link.context.trace_id:032x}", f"{link.context.span_id:016x}") == (TRACE, PARENT)
    assert span.context is not None
    assert span.context.trace_id != link.context.trace_id


async def test_what_a_processor_calls_belongs_to_the_span_of_its_run(
    fleet: Fleet, spans: Spans, kept: InMemorySpanExporter
) -> None:
    seen: dict[str, int] = {}

    async def look(timer: Timer, _context: Context) -> None:
        seen[timer.id] = trace.get_current_span().get_span_context().span_id

    @processor("plain")
    def in_a_thread(timer: Timer, _context: Context) -> None:
        seen[timer.id] = trace.get_current_span().get_span_context().span_id

    await fleet.pod(Calls(act=look), in_a_thread, spans=spans)
    await fleet.client.create("note", "x", delay=0)
    await fleet.client.create("plain", "y", delay=0)
    found = await ended(kept, 2)
    assert seen == {told(span)[1]: span.context.span_id for span in found if span.context is not None}
    assert not [link for span in found for link in span.links], "they were armed in no trace"


async def test_each_attempt_has_a_span_that_says_how_it_ended(
    fleet: Fleet, spans: Spans, kept: InMemorySpanExporter
) -> None:
    async def act(timer: Timer, _context: Context) -> Rearm | None:
        if timer.occurrence == 2:
            return None
        if timer.attempt == 2:
            return Rearm(after=0)
        raise ValueError("broken")

    await fleet.pod(Calls(act=act, retry={"backoff": "fixed", "base": "1ms"}), spans=spans)
    await fleet.client.create("note", "x", delay=0)
    found = await ended(kept, 3)
    assert [told(span)[2:] for span in found] == [(1, "failed"), (2, "rearm"), (1, "done")]
    assert [span.status.description for span in found] == ["broken", None, None]
    (event,) = found[0].events
    assert (event.attributes or {})["exception.type"] == "ValueError"
    assert 'raise ValueError("broken")' in str((event.attributes or {})["exception.stacktrace"])


async def test_a_run_that_takes_too_long_has_a_span_with_the_reason(
    fleet: Fleet, spans: Spans, kept: InMemorySpanExporter
) -> None:
    await fleet.pod(Held(timeout="1ms", retry={"max_attempts": 1}), spans=spans)
    await fleet.client.create("note", "x", delay=0)
    (span,) = await ended(kept, 1)
    assert told(span) == ("run note", "x", 1, "failed")
    assert span.status.description == "the run took longer than its timeout of 1 ms"


async def test_a_provider_that_the_processors_code_has_set_is_used(
    fleet: Fleet, kept: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    await fleet.pod(Calls(), spans=Spans.configured("a"))
    await fleet.client.create("note", "x", delay=0)
    (span,) = await ended(kept, 1)
    assert told(span) == ("run note", "x", 1, "done")
