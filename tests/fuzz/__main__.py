"""The command for a long run: prints the seed and everything from schemathesis, and exits with its code."""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from tests.fuzz.run import fuzz


def main() -> int:
    """Run for `--seconds`. Returns the exit code: 0 if nothing was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    wanted = parser.parse_args()
    options = ["--seed", str(wanted.seed), "--max-time", str(wanted.seconds), "--max-examples", "100000"]
    options.append("--generation-database=none")
    with tempfile.TemporaryDirectory() as folder:
        ran = asyncio.run(fuzz(Path(folder), options))
    print(ran.output)
    return ran.code


if __name__ == "__main__":
    sys.exit(main())
