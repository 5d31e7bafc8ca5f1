"""A process whose locale has another encoding than UTF-8."""

import subprocess
import sys

from tests.cli.commands import clean_environment
from tests.nursery import ROOT


def test_the_scripts_are_read_in_any_locale() -> None:
    ascii_alone = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", "from timers.store import scripts; scripts.load_all()"],
        env=clean_environment(ascii_alone),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
