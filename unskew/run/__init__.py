"""Turns a configuration into a run folder: validate, run round by round, evaluate, record, save, resume."""
