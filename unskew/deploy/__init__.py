"""Tools for operators: certificates, folders, launching and stopping processes."""
