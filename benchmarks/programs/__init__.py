"""The clients' own processes: one module for each library, all spoken to as in ``serve``."""
