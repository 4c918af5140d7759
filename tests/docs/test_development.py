"""The settings for one's own machine: one new node, and no wait."""

from __future__ import annotations

import ast
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from django.test import override_settings

import django_redlock
from django_redlock import NodesUnavailable, conf, redlock
from django_redlock.checks import check_deployment, check_settings
from django_redlock.testing import EmbeddedNode
from tests.docs.test_docs import INSTALL, blocks

SOON = 20.0  # seconds: far less than the restart guard of 71


def shown(url: str) -> Any:
    """The settings that the page shows, for this node."""
    (text,) = [
        block.text for block in blocks(INSTALL) if block.text.startswith("# In the settings")
    ]
    names: dict[str, Any] = {}
    exec(text.replace("redis://127.0.0.1:6379/0", url), names)  # noqa: S102 - our own page
    return names["REDLOCK"]


def test_the_first_lock_on_a_new_node_is_taken_at_once():
    """With the settings of the page, and no warning; with the guard it is refused for 71 s."""
    with closing(EmbeddedNode()) as node:
        node.start()
        setting = shown(node.url)
        with override_settings(REDLOCK=setting):
            began = time.monotonic()
            with redlock("first", wait=SOON) as lease:
                lease.ensure()
            assert time.monotonic() - began < SOON
            assert check_settings() == check_deployment() == []
        del setting["default"]["RESTART_GUARD"]
        with (
            override_settings(REDLOCK={"default": setting["default"] | {"NODE_TIMEOUT": 10}}),
            pytest.raises(NodesUnavailable, match=r"restart guard.*(6\d|7[01])"),
        ):
            redlock("first").acquire()


@pytest.mark.parametrize("debug", [True, False])
def test_debug_changes_no_guard(debug):
    """What REDLOCK says holds, however the project is run."""
    with override_settings(DEBUG=debug, REDLOCK={"default": {"NODES": ["redis://a"]}}):
        group: Any = conf.backend("default").group
        assert group.nodes[0]._guard == 71


def reads_debug(source: str) -> bool:
    """Whether a text of Python looks at the setting."""
    return any(
        (isinstance(each, ast.Attribute) and each.attr == "DEBUG" and "settings" in ast.dump(each))
        or (isinstance(each, ast.Constant) and each.value == "DEBUG")
        for each in ast.walk(ast.parse(source))
    )


def test_no_module_looks_at_debug():
    """Neither locks nor answers nor checks depend on it."""
    package = Path(django_redlock.__file__).parent
    modules = {path.name: path.read_text(encoding="utf-8") for path in package.rglob("*.py")}
    assert [name for name, source in modules.items() if reads_debug(source)] == []
    assert reads_debug("if settings.DEBUG: pass")
    assert reads_debug("getattr(settings, 'DEBUG', False)")
    assert not reads_debug("logging.DEBUG")
