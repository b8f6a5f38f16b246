"""Local training: one client's requests answered on its data, and the executors that run many clients."""
