"""`make bench`: what a lock costs, here and elsewhere, all measured in one run.

    stage        five nodes, and which processor is whose
    clients      the clients that are measured, and how each is started
    processes    the clients' processes: told to take locks, they answer what it took
    programs/    what runs in those processes
    turns        all clients in turns; medians, quartiles, ratios of neighbours
    parts/       what is measured, a function each: a stage and its effort in, a result out
    result       what a part hands over
    goals        what was to be reached
    answers      what users ask, answered by the figures
    revisions/   two revisions of ours, beside each other
    store        results that are kept, with their commit
    report       the same results for a terminal, as JSON, as Markdown
    peers/       the environments of the other clients, which tests use, too

Only the standard library is imported by ``programs.serve``, because the interpreters of the other
clients import it too.
"""
