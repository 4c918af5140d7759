"""N nodes: one request to all of them, and the waiters in their queues."""
