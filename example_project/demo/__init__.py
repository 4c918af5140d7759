"""`python -m example_project.demo`: the box office on five nodes, a crowd, and what goes wrong.

forever   the site, open until Ctrl-C; customers come, nodes die
timetable what becomes of its nodes, by the clock and by visitors' buttons
switch    hears what those buttons ask for
once      five acts with an end and a verdict (--once)
stage     what both need: nodes, broker, database, worker, web server
servers   the last two, as processes
offices   acts 1 to 3: six ticket offices, with lock and fence, with the lock alone, with neither
office    one office, a process of its own
staff     all offices, as the acts direct them
browser   sends HTTP requests to the site
crowd     act 4: customers that click twice, reports that are asked for twice
tasks     act 5: a task that is sent 20 times, and one whose process is killed
endings   Ctrl-C
facts     what offices and crowd did, and what follows from it
screen    what the terminal shows
pictures  tables of rich for the screen
summary   the tables of all acts, and the verdict
"""
