"""Wrappers, which change any method."""
