"""Federations on real machines: the coordinator, its sites, and the network between them.

Errors say what to do: ConfigError or DataError for settings and data, WireError for messages, RunError for a run's
files, DeployError for all else.
"""

import os

# gRPC's handlers of a fork make one child in twenty crash before it begins (grpc/grpc#43055); ours never use gRPC.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
