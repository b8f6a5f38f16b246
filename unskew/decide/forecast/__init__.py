"""Costs of a run before it begins: seconds, bytes and memory."""
