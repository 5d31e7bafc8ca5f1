"""What runs timers on a pod: one small service a file, put together by `worker.py`.

The flow: `listener` hears events and `sweeper` keeps time; both only mark queues in the `intake`; `claimer` takes
what there is room for; `runner` calls processors; `settler` writes the ends; `heartbeat` extends leases.
"""
