"""`python -m example_project.demo`: the box office on five nodes, a crowd, and what goes wrong.

forever   the site is open until Ctrl-C; customers come, nodes die
once      three acts with an end and a verdict (--once)
stage     what both stand on: nodes, broker, database, worker, web server
servers   ... the last two, as processes
offices   acts 1 and 2: six ticket offices, with the lock and without it
office    one of them, a process of its own
staff     all of them, as the acts direct them
browser   what they and we ask the site with
crowd     act 3: customers that click twice, reports that are asked for twice
endings   Ctrl-C
facts     what they all did, and what follows from it
screen    what the audience sees
pictures  ... made of rich's tables
"""
