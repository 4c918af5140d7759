"""`durable=True`: a lock that refuses to be released before the COMMIT."""

from __future__ import annotations

import pytest
from django.db import transaction

from django_redlock import redlock


@pytest.mark.django_db
def test_the_transaction_of_a_test_case_does_not_count():
    """A durable lock works in a test that runs in a transaction of its own."""
    with redlock("name", durable=True) as lease:
        assert lease.remaining() > 0


@pytest.mark.django_db
def test_a_transaction_of_the_code_counts():
    """FM-40: inside `atomic` a durable lock is refused, and nothing is taken."""
    with transaction.atomic(), pytest.raises(RuntimeError, match="COMMIT"):
        redlock("name", durable=True).acquire()
    redlock("name", durable=True).acquire().release()
