"""Canaries without the listener that adds them."""

from timers.engine.canary import Canaries, Canary
from timers.engine.pod import Pod
from timers.store.notifications import parts


def judging(pod: Pod) -> tuple[Canaries, Canary]:
    """Those of a pod on one server: all, and the only one."""
    canaries = Canaries(pod)
    (whole,) = parts(pod.store.connections, pod.store.shards)
    return canaries, canaries.add(whole)
