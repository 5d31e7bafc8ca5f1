"""Faults planted in copies of the service, and how many of them the chaos runs find."""
