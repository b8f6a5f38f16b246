"""Many runs: each of tuning, advice and sweeps chooses cells, has them trained by one runner, and reads the results."""
