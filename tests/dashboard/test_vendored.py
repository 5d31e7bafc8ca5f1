"""Vendored files are exactly as published, and have their licences beside them."""

import hashlib
from pathlib import Path

import pytest

import timers.dashboard

OURS = Path(timers.dashboard.__file__).parent / "vendor"
TESTS = Path(__file__).parent / "vendor"


@pytest.mark.parametrize("folder", [OURS, TESTS], ids=["dashboard", "tests"])
def test_vendored_files_are_those_of_the_list(folder: Path) -> None:
    listed = {name: digest for digest, name in map(str.split, (folder / "SHA256SUMS").read_text().splitlines())}
    assert {path.name for path in folder.iterdir()} - {"SHA256SUMS", "VERSION"} == set(listed)
    assert "LICENSE" in listed
    for name, digest in listed.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest, name
