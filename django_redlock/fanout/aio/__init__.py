"""Carry the requests of an event loop's tasks to the nodes, over connections they share."""
