"""One run of one contender, in its own environment: python task.py CONTENDER JOB.json."""

import sys
from importlib import import_module
from pathlib import Path

from job import Job, Journal

if __name__ == "__main__":
    job = Job.read(Path(sys.argv[2]))
    journal = Journal(job.out)
    # Not run as a script itself: Ray's workers import it by this name.
    contender = import_module(f"{sys.argv[1]}_task")
    journal.mark("imported")
    contender.main(job, journal)
