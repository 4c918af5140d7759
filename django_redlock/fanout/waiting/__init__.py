"""Wait for a turn: the queue of this process, and the queues of the nodes."""
