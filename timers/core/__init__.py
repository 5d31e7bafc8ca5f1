"""What a timer is and what follows what: pure, and known to every other room."""
