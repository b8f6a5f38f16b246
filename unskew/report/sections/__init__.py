"""Parts of a report, each for what certain methods tell of their rounds."""
