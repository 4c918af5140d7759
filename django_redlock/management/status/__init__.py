"""What ``redlock_status`` prints: its sentences and tables, with rich and without, and its JSON."""
