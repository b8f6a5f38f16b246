"""Federations on real machines: the coordinator, its sites, and the network between them.

Errors say what to do: ConfigError or DataError for settings and data, WireError for messages, RunError for a run's
files, DeployError for all else.
"""
