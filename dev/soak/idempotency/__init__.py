"""Clients repeat requests while workers are killed: ``python -m dev.soak.idempotency``.

``shop`` is the site, served by each candidate's way of keeping requests apart; ``clients`` send;
``rig`` starts and kills; ``rules`` say what must not have happened.
"""
