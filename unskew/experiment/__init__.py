"""An experiment as a value: its settings, their checks and the files they are read from."""
