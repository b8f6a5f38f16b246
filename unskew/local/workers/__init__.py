"""Single-thread worker processes, one per core: the default way to train on a CPU.

Workers are forked once, before any parallel work, so data and networks are shared by copy-on-write.  Messages, memory
and replies are tensors in shared memory and JSON; nothing is pickled.  A message for many clients is written once.  A
worker runs a client's whole step with its own `LocalTrainer`, so the bits are those of `Sequential`.

A job holds several clients, many at first and fewer towards the end (guided self-scheduling, Polychronopoulos and Kuck,
1987).

    memory     values in memory that the main process and a worker share
    pool       the main process's side: child processes, their jobs and answers
    worker     a worker's side: answers jobs until the main process hangs up
    executor   the executor that puts the steps of one exchange into a pool
"""
