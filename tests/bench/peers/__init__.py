"""Measures other schedulers beside ours, in one run: `python -m tests.bench.peers`. README.md says how."""
