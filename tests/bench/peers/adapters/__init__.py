"""One small program a peer, run in that peer's own environment: arms jobs, or works them off."""
