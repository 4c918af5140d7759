"""An event loop that is closed while nodes still owe its rounds replies."""

from __future__ import annotations

import asyncio

from django_redlock.testing import EmbeddedNodes
from tests.support.links import LONG, asking, grant
from tests.support.loops import group_of


def test_a_round_ends_whose_loop_is_closed(three: EmbeddedNodes):
    """Another thread closes the connection that owes the reply, as a change of settings does."""
    group = group_of(three.urls, LONG)
    loop = asyncio.new_event_loop()
    round_ = asking(group, grant())
    answered = round_.answered = loop.create_future()
    answered.add_done_callback(print)  # a task waits for it
    loop.close()
    round_.end()
    assert answered.done()
    group.close()
