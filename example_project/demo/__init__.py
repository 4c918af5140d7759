"""`python -m example_project.demo`: six processes, five nodes, one lock, and what goes wrong.

play    both acts from beginning to end
office  one ticket office, a process of its own
staff   the offices as the play directs them
facts   what the offices did, and what follows from it
screen  what the audience sees
"""
