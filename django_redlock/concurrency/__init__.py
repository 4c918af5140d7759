"""Threads, locks and farewells that a signal handler's exception leaves in order."""
