"""Runs timers on a pod. `worker` lists its services, which `supervisor` keeps alive; `pod` is what all of them know.

The flow: `listener` hears events and `sweeper` keeps time; both only mark queues in the `intake`. `claimer` takes as
many timers as the pod has room for, `runner` calls processors, `runs` writes how runs ended, and `leases` extends
leases from a thread. `hooks` tells others of changes, and `maintenance` keeps the shards in order.
"""
