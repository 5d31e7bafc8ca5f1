"""What a timer is and what follows from what. Pure; every other room may use it."""
