"""Measurements of unskew itself, as ratios within one process; nothing here is a test."""
