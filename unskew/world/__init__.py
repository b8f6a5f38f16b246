"""What is true outside the algorithms: who answers, and over which channel."""
