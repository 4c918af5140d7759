"""The pages of refusals, in a browser."""

from __future__ import annotations

import pytest
from django.test import override_settings

from django_redlock import redlock


@pytest.mark.parametrize("view", ["decorated", "plain", "hebrew"])
def test_everybody_can_read_a_refusal(auditor, live_server, memory, view):
    """A page of a title and a sentence, while the lock is held, and while nobody can tell."""
    with override_settings(ROOT_URLCONF=__name__):
        address = f"{live_server.url}/read/{view}/"
        with redlock("stock"):
            assert auditor.audit(address, status=409) == []
        memory.down = {0, 1, 2}
        assert auditor.audit(address, status=503) == []
