"""The version, alone so that the build can read it without importing PyTorch."""

__version__ = "0.1.0.dev0"
