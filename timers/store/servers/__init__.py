"""Owns the way to servers: one, those behind Sentinels, a cluster; and what a write waits for there."""
