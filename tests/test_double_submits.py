"""Double submits to a real server with several processes, with the decorator and without."""

from __future__ import annotations

import pytest

from .shop.served import GUNICORN, SUBMITS, served


@pytest.mark.slow
def test_a_double_submit_makes_one_order(patient_nodes, tmp_path):
    """FM-40, FM-42: 300 overlapping double submits make 300 orders; without the decorator, 600."""
    alias = patient_nodes.settings(NODE_TIMEOUT=10, MAX_TTL=60, RESTART_GUARD=False)
    with served(GUNICORN, tmp_path, alias) as shop:
        statuses, orders = shop.double_submits("/locked/")
        assert (orders, statuses) == (SUBMITS, {201: SUBMITS, 409: SUBMITS})
        statuses, orders = shop.double_submits("/unlocked/")
        assert orders > SUBMITS
        assert statuses == {201: orders}
