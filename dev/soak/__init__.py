"""What only many plays can show: it finds defects by chance, and stops no change.

    python -m dev.soak                 the soaks: programs that play one fault very often
    python -m dev.soak leader --help   one of them, and what it takes
    python -m dev.soak.nightly         less of each, and the tests below; each entry is recorded

A folder is a subject, as below ``tests/``. In it are the rigs of its soaks, and tests: storms,
stopwatches, plays by the hundred, walks through a browser. Each test here is `nightly`, without a
mark. That a judge of a soak can fail is shown below ``tests/``, for each change: such as in
``tests/celery/test_soak_rules.py``.

    verdict        how a soak ends: passed, failed, or inconclusive
    nightly        the entries of a night, and their record
"""
