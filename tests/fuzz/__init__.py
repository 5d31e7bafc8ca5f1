"""Random requests against the running service, made by schemathesis from its own OpenAPI document.

`python -m tests.fuzz --seconds 600 --seed 7` runs long and prints the summary; `tests/api/test_fuzz.py` runs short.
"""
