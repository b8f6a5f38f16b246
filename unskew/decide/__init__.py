"""Many runs: tuning, advice and sweeps choose cells, and one runner trains them."""
