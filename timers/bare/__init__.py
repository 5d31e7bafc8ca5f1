"""Bare keys: any client in any language arms a timer with a plain `SET <prefix>:<id> <payload> PX <ms>`.

A client's key and its timer are in different hash slots. So a pod looks at the keys in one step and tells the shard in
another, and each script checks that what the pod knew still holds.
"""
