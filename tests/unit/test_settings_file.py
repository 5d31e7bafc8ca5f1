"""Settings in a file: which of them count, and errors in the file."""

from pathlib import Path

import pytest

from tests.unit.environ import refused_in
from timers.settings import load_settings


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text("# comment\nTIMERS_HTTP_PORT=1\nTIMERS_CONCURRENCY='7'\nOTHER=x\nTIMERS_POD=$1\n")
    assert (
        refused_in(file, {})
        == "TIMERS_POD: '$1' is not accepted; expected a name of up to 100 letters, digits, '_', '.' and '-'"
    )
    settings = load_settings({"TIMERS_HTTP_PORT": "2", "TIMERS_POD": "p"}, file)
    assert (settings.http_port, settings.concurrency) == (2, 7)


def test_an_empty_value_leaves_it_to_the_file(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text("TIMERS_HTTP_PORT=1\nTIMERS_CONCURRENCY=\nTIMERS_POD\n")
    settings = load_settings({"TIMERS_HTTP_PORT": ""}, file)
    assert (settings.http_port, settings.concurrency) == (1, 1000)


def test_lists_in_the_file_have_commas_too(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text("TIMERS_ROLES=worker\nTIMERS_PREFIXES=a,b\nTIMERS_SHARD_SUBSET=0-2,5\n")
    settings = load_settings({}, file)
    assert settings.roles == {"worker"}
    assert (settings.prefixes, settings.shard_subset) == (("a", "b"), (0, 1, 2, 5))


def test_the_file_may_refer_to_variables_of_the_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text("TIMERS_POD=pod-${ORDINAL}\nTIMERS_DATA_DIR=a$b$c=19\n")
    monkeypatch.setenv("ORDINAL", "7")
    settings = load_settings({}, file)
    assert settings.pod == "pod-7"
    assert settings.data_dir == Path("a$b$c=19")


def test_the_file_is_checked_for_unknown_names(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text("TIMERS_HTTP_PROT=1\n")
    assert "did you mean TIMERS_HTTP_PORT?" in refused_in(file, {})


def test_an_undecodable_file_is_one_clear_line(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_bytes(b"TIMERS_POD=\xff\n")
    assert refused_in(file, {}).startswith(f"{file} cannot be read: ")
