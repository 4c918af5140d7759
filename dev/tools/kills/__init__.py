"""Judge the suite: random mutants of the package, and the quick tests that kill each.

    make kills

Each mutant is one change of the text, as a tired author makes it. It is put into the live functions
of a process that has collected the tests, which forks for each mutant. The same sources give the
same mutants. What was played stays in ``.cache/kills/``, so a run goes on where it was interrupted.

What is not seen: code that runs while a module is imported, Lua, and what tests start as a process
of its own. The broken variants of ``tests/simulation/mutants/`` are tests, and run as such.
"""
