"""From a configuration to a run folder: validate, run round by round, evaluate, record, save, resume."""
