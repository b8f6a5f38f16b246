"""Sections of a report, each for the info that certain methods record."""
