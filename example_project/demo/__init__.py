"""`python -m example_project.demo`: the box office on five nodes, a crowd, and what goes wrong.

forever   the site, open until Ctrl-C; customers come, nodes die
timetable what becomes of its nodes, by the clock and by visitors' buttons
once      five acts with an end and a verdict (--once)
offices   acts 1 to 3: six ticket offices, with lock and fence, with the lock alone, with neither
office    one office, a process of its own
crowd     act 4, and `forever`: customers that click twice, reports that are asked for twice
stage     nodes, broker, database, worker, web server
servers   the last two, as processes
browser   sends HTTP requests to the site
endings   Ctrl-C, and lines on the terminal
"""
