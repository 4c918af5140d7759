"""One node, and N of them: connections, requests to all of them, and queues."""
