"""The HTTP API: it takes JSON and answers with timers and problems (RFC 9457).

`operations` is the table of calls; routes, rights and the OpenAPI document come from it. `routes`, `many`, `operating`,
`stream`, `health` and `docs` carry out the calls. `body` reads requests, `problems` turns every error into an answer,
`openapi` and `components` build the document, and `server` listens.
"""
