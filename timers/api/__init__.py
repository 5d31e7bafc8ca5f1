"""The HTTP API: JSON in, timers and problems (RFC 9457) out.

`operations` is the table of calls; routes, rights and the OpenAPI document come from it. `routes`, `many`, `operating`,
`stream`, `health` and `docs` carry the calls out. `body` reads requests, `problems` turns every error into an answer,
`openapi` and `components` make the document, `server` listens.
"""
