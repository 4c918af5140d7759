"""The locks that people copy: each works as its author meant it to, and is broken by a fault.

    make museum
    python -m museum --only setnx-del --runs 20

A **recipe** is a lock as articles and libraries show it. A **run** is what happens to its clients
and servers: a script of real processes, stops, kills and lost replies. A **cell** is a recipe in a
run, with what must be seen there. Each client writes what it does into a **history**; a checker
finds in it where two clients held the lock at once, updates that were lost, fences out of order,
and for how long nobody could have the lock.
"""
