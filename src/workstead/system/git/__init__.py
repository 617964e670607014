"""Run git behind a hardened environment, and read repositories without it."""
