"""N nodes: one request to all of them, and who waits in their queues."""
