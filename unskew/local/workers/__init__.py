"""Single-thread worker processes, one per core: the default way to train on a CPU.

Workers are forked once, before the run does any parallel work, so data and networks are shared by copy-on-write and a
worker is ready in milliseconds.  A client's message, memory and reply travel in the wire's own form: tensors in shared
memory, the rest as JSON; nothing is pickled.  A message that many clients share is written once.  A worker runs a
client's whole step with its own `LocalTrainer`, as `Sequential` does, so the bits are the same too.

A job holds a few clients, so that handing over small ones does not cost more than training them: many at first, fewer
towards the end, when workers must become idle together (guided self-scheduling, Polychronopoulos and Kuck, 1987).

    setup      what a worker needs for one method under one seed
    memory     values in memory that the main process and a worker share
    process    a child process: how it is forked, and how it ended
    pool       the main process's side: jobs, which worker gets which, and their answers
    worker     a worker's side: jobs answered until the main process hangs up
    executor   the executor that puts the steps of one exchange into a pool
"""
