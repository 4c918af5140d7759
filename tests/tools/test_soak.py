"""`make soak`: the table of its names."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from dev.soak import __main__ as soak


@pytest.mark.parametrize("name", soak.SOAKS)
def test_each_soak_is_a_program(name):
    """A module that is run, or tests that pytest runs."""
    _, _, module, *words = soak.command(name)
    found = find_spec(module)
    assert found
    assert found.origin
    package = f"{module}.__main__" if found.submodule_search_locations else module
    assert find_spec(package)
    assert all((soak.ROOT / word).exists() for word in words if "/" in word)


def test_the_list_has_them_all(capsys):
    """Without a name; a name that is none is refused, and the list says which there are."""
    assert soak.main([]) == 0
    listed = capsys.readouterr().out
    assert [line.split()[0] for line in listed.splitlines()] == [*soak.SOAKS]
    assert soak.main(["no-such"]) == 2
    assert capsys.readouterr() == (listed, "There is no soak 'no-such'.\n")
