"""`timers --version`, which scripts ask: it must not wait for what the other commands import."""

import json
import subprocess
import sys

from tests.cli.commands import END_SECONDS, CommandLine

ASK = """
import json, sys
sys.argv = ["timers", "--version"]
before = set(sys.modules)
from timers_processors.command import main
main()
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def test_the_version_is_told_with_few_imports(bare: CommandLine) -> None:
    ended = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, timeout=END_SECONDS, check=True)
    told, imported = ended.stdout.splitlines()
    assert told == bare("--version").out.strip()
    packages = {name.partition(".")[0] for name in json.loads(imported)}
    assert packages - sys.stdlib_module_names == {"timers_processors"}
    assert len(json.loads(imported)) < 150
