"""Everything unskew raises on purpose.  Each message is one sentence: what, expected, got, where, what to do."""


class UnskewError(Exception):
    """Base of all errors a user can cause or meet; the command prints its text alone and exits with 2."""


class ConfigError(UnskewError):
    """A setting that cannot be honoured; raised before any work begins."""


class DataError(UnskewError):
    """Data or a split that cannot be used: missing, corrupt, out of range, impossible to divide as asked."""


class ProtocolError(UnskewError):
    """An algorithm broke the contract of plans and steps."""


class QuorumError(UnskewError):
    """Too few clients replied for a round to mean anything."""


class WireError(UnskewError):
    """Bytes that are not the message they should be."""


class DivergedError(UnskewError):
    """A loss or a parameter became NaN or infinite."""


class WorkerError(UnskewError):
    """A worker process is gone, or failed in a way of its own."""


class RunError(UnskewError):
    """A run folder that cannot be written, read or continued."""


class DeployError(UnskewError):
    """Certificates, keys, ports or processes of a deployment that do not work as they are."""
