"""The locks that people copy: each works as its author meant it to, and is broken by a fault.

    make museum
    python -m dev.museum --only setnx-del --runs 20

A **room** (``rooms/``) is one file about one lock, to be read from top to bottom: the recipe, as
articles and libraries show it; the faults that belong to this lock; and what is counted, one cell
for each fault. ``faults`` has the faults that many rooms share: scripts for real clients and
servers, which stop, die and lose replies on a **stage**. Each client writes what it does into a
**history**. The **checker** finds in a history two holders at once, lost updates, fences out of
order, and how long nobody could have the lock.
"""
