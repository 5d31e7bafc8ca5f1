"""The processors that come with the service. Each has its own module and entry point."""
