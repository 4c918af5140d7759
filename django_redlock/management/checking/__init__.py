"""What ``redlock_check`` asks for and prints: its tables, with rich and without, and its JSON."""
