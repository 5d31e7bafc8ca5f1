"""Random requests to the running service, which schemathesis makes from the OpenAPI document.

`python -m tests.fuzz --seconds 600 --seed 7` runs long and prints the summary; `tests/api/test_fuzz.py` runs short.
"""
