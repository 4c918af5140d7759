"""The tasks of these tests, as they are made: a worker of Django's finds a task by its path."""
