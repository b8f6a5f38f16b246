"""Prices recorded runs in a radio cell."""
