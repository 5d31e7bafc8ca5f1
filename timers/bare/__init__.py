"""Bare keys: any client in any language arms a timer with a plain `SET <prefix>:<id> <payload> PX <ms>`."""
