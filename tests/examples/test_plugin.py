"""The example plugin package. `tests/install` tests that pods find it once it is installed."""

from pathlib import Path

from tests.cli.commands import run_python

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / "examples" / "invoice-reminder"


def test_it_passes_its_own_tests() -> None:
    ended = run_python("pytest", "-q", "-p", "no:cacheprovider", cwd=PLUGIN)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "3 passed" in ended.stdout


def test_the_guide_to_processors_shows_its_code() -> None:
    code = (PLUGIN / "src" / "invoice_reminder" / "__init__.py").read_text().partition('"""\n\n')[2]
    assert f"```python\n{code}```\n" in (ROOT / "processors" / "README.md").read_text()
