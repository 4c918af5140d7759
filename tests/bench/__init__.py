"""`make bench`: what acquire and release cost, beside hand-written sockets, in one run."""
