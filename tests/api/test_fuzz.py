"""A short fuzz run with a fixed seed against a running service: no check of schemathesis may fail."""

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.fuzz.run import fuzz
from timers.api.operations import OPERATIONS

SHORT = ("--generation-deterministic", "--phases", "examples,coverage,fuzzing", "--max-examples", "3")


@pytest.mark.timeout(600)
async def test_schemathesis_finds_nothing(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    ran = await fuzz(tmp_path, [*SHORT, "--report", "junit", "--report-junit-path", str(report)])
    assert ran.code == 0, ran.output
    assert "Failures:" not in ran.summary
    assert "Errors:" not in ran.summary
    tested = {case.attrib["name"] for case in ET.parse(report).iter("testcase")}  # noqa: S314 (of our making)
    assert tested >= {f"{o.method} {o.path}" for o in OPERATIONS}
    cases = re.search(r"(\d+) generated, (\d+) passed", ran.summary)
    assert cases is not None
    assert int(cases[1]) > 500
