"""Worlds: a seeded simulation that drives the production algorithm through every misfortune.

    profiles   what may go wrong in a world, and how often: all that the lock must bear
    queued     worlds in which everybody waits
    renewing   worlds in which leases are renewed, and clients have a watchdog
    beyond     what it does not promise to bear, and that it does break there
    network    nodes that restart, connections that delay, lose, repeat and get out of step
    places     queues: who waits where, and how a wake-up gets lost
    foreign    another program that takes the same names
    client     what a user of locks does, as a generator on top of the algorithm's
    row        what a holder changes, with and without its fence
    world      virtual time, and the driver: it pauses, cancels and kills
    checker    what must be true after every event
    patience   and what those who wait may expect
    kinds      all of these worlds, by name
    mutants    broken variants of the code; each must be caught
    soak       many worlds, on all cores, in as many sittings as it takes
    page       the tables of docs/dev/mutants.md

A world is a function of its profile and its seed; a failing one prints how to play it again.
``python -m tests.simulation`` plays worlds and prints how soon each mutant is caught.
"""
