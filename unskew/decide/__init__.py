"""Many runs: tuning, advice and sweeps choose cells, one runner trains them, and each reads the outcomes."""
