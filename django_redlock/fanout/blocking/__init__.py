"""Carry the requests of threads to the nodes."""
