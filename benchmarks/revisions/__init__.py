"""`make bench ARGS="--against REV"`: two revisions beside each other.

    checkout   a copy of the package of a revision, in a folder of its own
    compare    both in turns, each in a process of its own, on the same nodes
    verdict    when one revision is called slower than the other

Every scenario is reached through the public API, so that any two revisions can be compared.
"""
