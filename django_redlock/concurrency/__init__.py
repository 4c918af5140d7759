"""Threads, locks and finalizers that survive an exception of a signal handler; forks and loops."""
