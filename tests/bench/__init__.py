"""`make bench`: what a lock costs, here and elsewhere, all measured in one run.

    stage        five nodes, and which processor is whose
    contestants  who is measured, and how each is started
    cast         the contestants' processes: told to take locks, they answer what it took
    programs/    what runs in those processes
    delay        a process that puts 1 ms before each message, both ways
    turns        everybody in turns; medians, quartiles, ratios of neighbours
    results      what a part of the bench hands over
    scenarios    the parts, each a function: a stage and its effort in, a result out
    crowds       processes that want one name: their turns, and what waiting was like
    handover     the part about that: few, many, other clients, the queue's node ill
    renewal      the part about leases that are kept alive; also a command of its own
    costs        the part about one held lock: bytes, messages, server time
    goals        what was to be reached
    report       the same results for a terminal, as JSON, as Markdown

Only the standard library is imported by ``programs.serve``, because the interpreters of the other
clients import it too.
"""
