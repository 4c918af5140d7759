"""Very many messages through workers that are killed: ``python -m dev.soak.celery``.

``rig`` plays it, and everybody who takes part writes into one file (``history``); ``rules`` reads
that file and says what must not have happened. ``programs`` run in processes of their own: the
workers and publishers of this package, and of others beside it. ``table`` shows the figures.
"""
