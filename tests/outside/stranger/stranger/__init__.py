"""One piece of each kind."""
