"""What is measured, a function each: a stage and its effort in, a result out.

    healthy     all nodes well, pinned and unpinned; what the decorators add to the bare lock
    threads     eight threads of one process, beside one
    tasks       many tasks on one event loop, and what settings of the application bring
    single      one node, beside locks that are made for one
    network     1 ms to each node and 1 ms back
    delay       the process that does so to each message
    faults      one of five nodes hangs, or is dead
    costs       one held lock: bytes, messages, server time
    memory      the client's process: garbage of locks, bytes of a held lease
    imports     what importing the package adds to a start
    crowds      processes that want one name: their turns, and what waiting was like
    handover    the part about that: few, many, other clients, the queue's node ill
    renewal     leases that are kept alive; also a command of its own
    watching    what operators look at, of many locks among many keys
    fencing     statements of claimed rows, on three databases
    before      the client beside an earlier revision

`benchmarks.__main__` names the parts.
"""
