"""Owns what `timers doctor` says: what is wrong with servers, pods, ledger and timers, and what repairs it."""
