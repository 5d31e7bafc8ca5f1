"""Runs timers on a pod: one small service a file, put together by `worker.py`.

The flow: `listener` hears events and `sweeper` keeps time; both only mark queues in the `intake`. `claimer` takes as
many timers as the pod has room for, `runner` calls processors, `settler` writes how runs ended, and `heartbeat` extends
leases from a thread.
"""
