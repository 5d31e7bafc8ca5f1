"""The witness log can be read back in order, also after a kill and from several processes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.witness import Attempt, Event, FaultKind, Kind, Outcome, Verb, Witness, read_history

_ENDLESS_WRITER = """
import sys
from pathlib import Path
from tests.chaos.witness import Attempt, Witness

witness = Witness(Path(sys.argv[1]), "writer")
number = 0
while True:
    number += 1
    witness.start(Attempt(timer="chaos/" + "x" * 150, occurrence=1, attempt=number, token=number, due_ms=1))
    if number == 1000:
        print("warm", flush=True)
"""


def test_events_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    driver, pod = Witness(tmp_path, "driver"), Witness(tmp_path, "pod-1")
    run = Attempt(timer="chaos/ü", occurrence=2, attempt=3, token=9, due_ms=1_900_000_000_000)
    call = driver.invoke(Verb.CREATE, "chaos/ü", due_ms=5, if_exists="error")
    fault = driver.fault_on(FaultKind.KILL, "pod-1")
    written = [
        call,
        fault,
        driver.answer(call, Kind.INFO, "TimeoutError"),
        pod.start(run),
        pod.end(run, Outcome.DONE),
        driver.fault_off(fault, "exit -9"),
    ]
    driver.close()
    pod.close()
    assert read_history(tmp_path) == sorted(written, key=lambda event: event.mono_ns)
    assert [event.kind for event in read_history(tmp_path)][-1] is Kind.FAULT_OFF


def test_line_cut_by_a_kill_is_dropped(tmp_path: Path) -> None:
    witness = Witness(tmp_path, "pod-1")
    kept = witness.invoke(Verb.CANCEL, "chaos/t")
    witness.close()
    [path] = tmp_path.iterdir()
    path.write_bytes(path.read_bytes() + b'{"kind":"start","mono_n')
    assert read_history(tmp_path) == [kept]


@pytest.mark.parametrize(
    "line", ["{}", "[]", "not json", '{"kind":"rumour","mono_ns":1,"wall_ns":1,"pid":1}', '{"kind":"ok"}']
)
def test_foreign_line_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "pod-1.jsonl").write_text(f"{line}\n")
    with pytest.raises(ValueError, match=r"pod-1\.jsonl, line 1 is not an event"):
        read_history(tmp_path)


def test_text_that_would_not_fit_is_shortened_and_a_longer_line_refused(tmp_path: Path) -> None:
    witness = Witness(tmp_path, "driver")
    call = witness.invoke(Verb.CREATE, "chaos/t")
    assert len(witness.answer(call, Kind.FAIL, "x" * 10_000).outcome) == 200
    with pytest.raises(ValueError, match="below 4096 bytes"):
        witness.invoke(Verb.CREATE, "x" * 5_000)
    witness.close()
    assert len(read_history(tmp_path)) == 2


def test_writer_killed_at_any_instant_leaves_a_readable_history(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _ENDLESS_WRITER, str(tmp_path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"warm\n"
        writer.send_signal(signal.SIGKILL)
    history = read_history(tmp_path)
    assert [event.attempt for event in history] == list(range(1, len(history) + 1))
    assert len(history) >= 1000


def test_event_without_its_optional_fields_is_a_short_line() -> None:
    event = Event(kind=Kind.INVOKE, mono_ns=2, wall_ns=1, pid=3, timer="chaos/t", verb=Verb.CANCEL)
    assert event.to_line() == '{"kind":"invoke","mono_ns":2,"wall_ns":1,"pid":3,"timer":"chaos/t","verb":"cancel"}'
    assert Event.from_line(event.to_line()) == event
