"""Bare keys: a plain `SET <prefix>:<id> <payload> PX <ms>` of any client in any language arms a timer.

A client's key lies in a hash slot of its own, its timer in that of a shard. So a pod looks at keys in one step and
tells the shard in another, and each script compares what the pod knew with what holds now.
"""
