"""axe-core, which finds what keeps people from reading a page: of npm, an exact version.

It is installed as the clients in JavaScript are: once for all processes, into `.cache`.
"""

from __future__ import annotations

import functools
import json
import shutil
from typing import TYPE_CHECKING, Any, Final

from dev.benchmarks.peers import PeerUnavailable, environments

from .faults import Fault

if TYPE_CHECKING:
    from playwright.sync_api import Page

VERSION: Final = "4.14.1"
# WCAG 2.0, 2.1 and 2.2, levels A and AA, and what axe-core's makers advise.
TAGS: Final = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")
RUN: Final = """async (tags) => {
  const rules = {"target-size": {enabled: true}};
  const found = await axe.run(document, {runOnly: tags, resultTypes: ["violations"], rules});
  return found.violations.flatMap(({id, help, nodes}) => nodes.map((node) => {
    const why = [...node.any, ...node.all, ...node.none].map((each) => each.message);
    return {rule: id, where: String(node.target.at(-1)), text: [help, ...why].join("; ")};
  }));
}"""


def why_not() -> str:
    """What is missing, and how to get it; "" if nothing is."""
    if shutil.which("npm") is None:
        return "no npm for axe-core: apt-get install npm"
    try:
        script()
    except PeerUnavailable as error:
        return f"no axe-core {VERSION}: {error}"
    return ""


@functools.cache
def script() -> str:
    """Return the program text of axe-core.

    Raises:
        PeerUnavailable: npm cannot install it.
    """
    home = environments.node_modules("axe-core", {"axe-core": VERSION}) / "axe-core"
    installed = json.loads((home / "package.json").read_text())["version"]
    assert installed == VERSION
    return (home / "axe.min.js").read_text()


def violations(page: Page) -> list[Fault]:
    """Return what breaks a rule on the page, as it is shown now."""
    if not page.evaluate("typeof axe === 'object'"):
        page.evaluate(script())
    found: list[dict[str, Any]] = page.evaluate(RUN, list(TAGS))
    return [Fault(**each) for each in found]
