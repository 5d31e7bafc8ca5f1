"""Loads settings from an environment that a test makes up."""

from base64 import b64encode
from pathlib import Path

import pytest

from timers.errors import ConfigurationError
from timers.settings import Settings, load_settings

NO_FILE = Path("no-such-env-file")
SECRET = "whsec_" + b64encode(b"0123456789abcdefghijklmnop").decode()


def load(**environ: str) -> Settings:
    return load_settings({f"TIMERS_{name}": value for name, value in environ.items()}, NO_FILE)


def refusal(**environ: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load(**environ)
    assert caught.value.__suppress_context__ or caught.value.__cause__ is None
    line = str(caught.value)
    assert "\n" not in line
    return line


def refused_in(file: Path, environ: dict[str, str]) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load_settings(environ, file)
    return str(caught.value)
