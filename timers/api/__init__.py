"""The HTTP API: strict JSON in, timers and problems (RFC 9457) out.

`routes` has the calls on timers, `health` those about the pod, `body` and `query` read requests, `problems` turns every
error into an answer, `serving` knows which prefixes somebody serves, `server` listens.
"""
