"""Measures the service over real servers and real pods: `python -m tests.bench`. README.md says what figures mean."""
