"""The processors that come with the service. Each is a module of its own and an entry point."""
