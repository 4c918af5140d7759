"""`make bench`: what a lock costs, here and elsewhere, all measured in one run.

A question is a file, with a function for each part of ``--only``: a stage in, a result out.

    lock       how long a free lock takes: pinned, unpinned, 1 ms away, under decorators
    one_node   how long it takes on one node, beside locks that are made for one
    rate       how many locks a second: threads, tasks, tasks from a start, settings of a site
    ill        what a node costs that hangs or is dead
    waiting    how long a waiter waits, beside others and with an ill node of the queue
    node       what a lock costs a node
    renewal    what held leases cost
    message    what marks, locks and records add to a Celery message

    against    two revisions of ours beside each other: ``--against``
    stage      five nodes, and which processor is whose
    clients    the clients that are measured, and their processes
    measure    all clients in turns; medians, quartiles, ratios of neighbours
    report     the same results for a terminal, as JSON, as Markdown
    programs/  what runs in the processes
    peers/     the environments of the other clients, which tests and the museum use, too
"""
