"""The service in one process on a clock and a network of its own: see README.md."""
