"""Single-thread worker processes, one per core: the default way to train on a CPU.

Workers are forked once, before the run does any parallel work, so data and networks are shared by copy-on-write and a
worker is ready in milliseconds.  A client's message, memory and reply travel in the wire's own form: tensors in shared
memory, the rest as JSON; nothing is pickled.  A message that many clients share is written once.  A worker runs a
client's whole step with its own `LocalTrainer`, as `Sequential` does, so the bits are the same too.

A job holds a few clients, so that handing over small ones does not cost more than training them: many at first, fewer
towards the end, when workers must become idle together (guided self-scheduling, Polychronopoulos and Kuck, 1987).

    memory     values in memory that the main process and a worker share
    pool       the main process's side: child processes, which of them gets which job, and their answers
    worker     a worker's side: what it needs, and jobs answered until the main process hangs up
    executor   the executor that puts the steps of one exchange into a pool
"""
