"""The CI workflow: valid, with least rights and pinned actions, on every supported version."""

import re
import subprocess
import sysconfig
from typing import Any

import pytest
import yaml

from tests.install.environment import ROOT, project_metadata

WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"

JOBS: Any = yaml.safe_load(WORKFLOW.read_text())["jobs"]


@pytest.mark.parametrize(
    "words",
    [
        ["check-jsonschema", "--builtin-schema", "vendor.github-workflows", str(WORKFLOW)],
        # Finds actions that are not pinned, rights to write, and strangers' text in a shell.
        ["zizmor", "--offline", "--no-progress", "--pedantic", str(WORKFLOW)],
    ],
    ids=lambda words: words[0],
)
def test_the_linters_find_nothing(words: list[str]) -> None:
    program, *arguments = words
    command = [f"{sysconfig.get_path('scripts')}/{program}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_runs_what_ci_runs_on_every_supported_python_and_server() -> None:
    matrix = JOBS["check"]["strategy"]["matrix"]
    named = [
        re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", name) for name in project_metadata()["classifiers"]
    ]
    assert matrix["python"] == [found[1] for found in named if found]
    servers = {(family, version) for pair in matrix["servers"] for family, version in pair.items()}
    assert servers == {("redis", "7"), ("redis", "8"), ("valkey", "8"), ("valkey", "9")}
    assert JOBS["check"]["steps"][-1]["run"].endswith("CI=true .ci/run")
    assert JOBS["drills"]["steps"][-1]["run"].endswith("CI=true .ci/run drills")
    assert JOBS["dist"]["steps"][-1]["run"] == "make dist"
    assert "tests/generators/typescript/run\n" in JOBS["clients"]["steps"][-1]["run"]


def test_no_job_may_write() -> None:
    assert all(job["permissions"] == {"contents": "read"} for job in JOBS.values())
