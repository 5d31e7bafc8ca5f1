"""The only place that talks to Redis. PROTOCOL.md describes every key, script and answer."""
