"""Wrappers: what changes a method without knowing it."""
