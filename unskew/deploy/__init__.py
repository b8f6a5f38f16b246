"""A federation that is operated: its coordinator, its sites, and the network between them.

What is refused raises an error that says what to do: ConfigError or DataError for what a user has written,
WireError for what came from elsewhere, RunError for what a run has kept, DeployError for all else.
"""
