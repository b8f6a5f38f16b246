"""Where a client's requests meet its data: one client at a time (solo), and the executors that run many."""
