"""Settings in a file: which of them count, and errors in the file."""

from pathlib import Path

import pytest

from tests.unit.environ import NO_FILE, SECRET, refused_in
from timers.settings import SECRET_NAMES, load_settings, setting_origins


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
    file.write_text("TIMERS_HTTP_PORT=1\nTIMERS_CONCURRENCY=\nOTHER\n")
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
    file.write_text("TIMERS_HTTP_PROT=\nTIMERS_REDIS_URL_FILE=\n")
    assert "did you mean TIMERS_HTTP_PORT?" in refused_in(file, {})


def test_an_undecodable_file_is_one_clear_line(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_bytes(b"TIMERS_POD=\xff\n")
    assert refused_in(file, {}).startswith(f"{file} cannot be read: ")


@pytest.mark.parametrize(
    "line", ["TIMERS_POD", "export TIMERS_POD", "TIMERS_POD pod-1", "TIMERS_POD='pod-1", "=pod-1", "TIMERS_POD='a' b"]
)
def test_a_line_that_says_nothing_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / ".env"
    file.write_text(f"TIMERS_CONCURRENCY=7\n\n# a comment\n\n  {line}\nTIMERS_HTTP_PORT=1\n")
    told = refused_in(file, {})
    assert told == f"{file}: line 5 cannot be read; expected NAME=value or # and a comment"


def test_a_folder_of_that_name_is_no_file(tmp_path: Path) -> None:
    (tmp_path / ".env").mkdir()
    assert load_settings({"TIMERS_POD": "a"}, tmp_path / ".env").pod == "a"


SECRETS = {
    "TIMERS_REDIS_URL": "rediss://timers:hidden@127.0.0.1:6379/5",
    "TIMERS_LEDGER_URL": "postgresql+asyncpg://timers:hidden@127.0.0.1/shop",
    "TIMERS_API_KEYS": f"shop:{'0' * 64}:*:read",
    "TIMERS_SIGNING_SECRETS": SECRET,
    "TIMERS_WEBHOOK_TARGETS": "trial=https://example.org/hidden",
    "TIMERS_WEBHOOK_SECRETS": f"whsec_{'YWJj' * 8}",
    "TIMERS_HOOK_SECRETS": f"whsec_{'ZGVm' * 8}",
    "TIMERS_HOOKS": "failed@*=https://example.org/hidden",
    "TIMERS_ALARMS": "https://example.org/hidden",
    "TIMERS_SMTP_URL": "smtp://shop:hidden@127.0.0.1:587",
    "TIMERS_SMS_URL": "https://hidden@example.org/",
    "TIMERS_USER_URL": "https://hidden@example.org/{user}",
}
OTHERS = {"TIMERS_MAIL_FROM": "shop@example.org", "TIMERS_POD": "a"}


def test_every_secret_can_be_given_as_the_file_that_docker_or_kubernetes_mounts(tmp_path: Path) -> None:
    assert SECRETS.keys() == set(SECRET_NAMES)
    for name, value in SECRETS.items():
        (tmp_path / name).write_text(f"{value}\n")
    files = {f"{name}_FILE": str(tmp_path / name) for name in SECRETS}
    assert load_settings({**files, **OTHERS}, NO_FILE) == load_settings({**SECRETS, **OTHERS}, NO_FILE)
    origins = setting_origins({**files, **OTHERS}, NO_FILE)
    assert {name: origins[name] for name in SECRETS} == {name: str(tmp_path / name) for name in SECRETS}
    env_file = tmp_path / ".env"
    env_file.write_text("".join(f"{name}={path}\n" for name, path in files.items()))
    assert load_settings(OTHERS, env_file) == load_settings({**SECRETS, **OTHERS}, NO_FILE)
    assert setting_origins(OTHERS, env_file)["TIMERS_SMTP_URL"] == str(tmp_path / "TIMERS_SMTP_URL")


def test_the_environment_wins_over_a_secret_that_the_file_names(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("redis://127.0.0.1:1/0")
    env_file = tmp_path / ".env"
    env_file.write_text(f"TIMERS_REDIS_URL_FILE={tmp_path / 'url'}\n")
    environ = {"TIMERS_REDIS_URL": "redis://127.0.0.1:2/0"}
    assert load_settings(environ, env_file).redis_url == environ["TIMERS_REDIS_URL"]
    assert setting_origins(environ, env_file)["TIMERS_REDIS_URL"] == "environment"


def test_a_secret_file_that_cannot_be_used_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "binary").write_bytes(b"\xff")
    (tmp_path / "wrong").write_text("hidden-words\n")
    (tmp_path / "marked").write_bytes(f"\ufeff{SECRETS['TIMERS_API_KEYS']}\r\n".encode())
    said = {
        "nowhere": "cannot be read: No such file or directory",
        "binary": "cannot be read: it is not text",
        "empty": "is empty",
        "marked": "begins with a byte order mark; save it as UTF-8 without one",
    }
    for name, reason in said.items():
        told = refused_in(NO_FILE, {"TIMERS_API_KEYS_FILE": str(tmp_path / name)})
        assert told == f"TIMERS_API_KEYS_FILE: {str(tmp_path / name)!r} {reason}"
    told = refused_in(NO_FILE, {"TIMERS_API_KEYS_FILE": str(tmp_path / "wrong")})
    assert told.startswith("TIMERS_API_KEYS: the given value is not accepted")
    both = {"TIMERS_API_KEYS": SECRETS["TIMERS_API_KEYS"], "TIMERS_API_KEYS_FILE": "keys"}
    assert refused_in(NO_FILE, both) == "TIMERS_API_KEYS and TIMERS_API_KEYS_FILE are both set; leave one of them out"
    assert "TIMERS_HTTP_PORT_FILE" in refused_in(NO_FILE, {"TIMERS_HTTP_PORT_FILE": "port"})
