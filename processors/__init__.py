"""The processors that come with the service. Each is a module of its own; `timers.processor` names those it loads."""
