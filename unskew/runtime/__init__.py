"""Runtimes, which answer the requests of a plan: in this process, or over a network."""
