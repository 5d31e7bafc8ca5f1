"""The HTTP API: it takes JSON and answers with timers and problems (RFC 9457).

`operations` is the table of calls; routes, rights and the OpenAPI document come from it. `routes`, `stream`, `health`
and `openapi` carry out the calls. `server` listens; `auth` and `credentials` let requests through; `requests` reads
them and limits their time, `answer` turns every result and error into an answer.
"""
