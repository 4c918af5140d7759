"""``llms.txt``, the list of the pages that is built with them."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable, Mapping
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.docs.pages import ROOT

DOCS = ROOT / "docs"
LINE = re.compile(r"- \[(.+)\]\(https://\S+/en/latest/(\S+)\.html\): ([A-Z].+\.)")


@pytest.fixture(scope="module")
def conf() -> dict[str, Any]:
    """What Sphinx reads."""
    return runpy.run_path(str(DOCS / "conf.py"))


@pytest.fixture(scope="module")
def titles(conf: dict[str, Any]) -> dict[str, str]:
    """The title of each page; what others include is none."""
    pages = [page for page in DOCS.rglob("*.md") if "_build" not in page.parts]
    names = {str(page.relative_to(DOCS).with_suffix("")): page for page in pages}
    left_out = conf["exclude_patterns"]
    return {
        name: re.findall(r"^# (.*)$", page.read_text(), re.MULTILINE)[0].replace("`", "")
        for name, page in names.items()
        if not any(fnmatch(f"{name}.md", each) for each in left_out)
    }


def test_each_page_has_a_line_and_one_sentence(conf, titles):
    """With its title and its address; a new page fails the build until it has one."""
    text = conf["llms_txt"](titles)
    lines = [LINE.fullmatch(line) for line in text.splitlines() if line.startswith("- ")]
    assert {line[2]: line[1] for line in lines if line} == titles
    sentences = [line[3] for line in lines if line]
    assert len(set(sentences)) == len(titles) == len(lines)
    assert all(len(each) < 100 and ". " not in each for each in sentences)
    assert [line for line in text.splitlines() if not line.startswith("- ") and line] == [
        "# django-redlock",
        "> Locks for Django that hold across processes and machines.",
        *("## Begin", "## How to", "## Explanation", "## Reference"),
    ]


def test_a_page_too_many_or_too_few_fails_the_build(conf, titles):
    """So that the list is never out of date."""
    write: Callable[[Mapping[str, str]], str] = conf["llms_txt"]
    with pytest.raises(ValueError, match=r"differ in \['how-to/new'\]"):
        write(titles | {"how-to/new": "New"})
    with pytest.raises(ValueError, match=r"differ in \['install'\]"):
        write({name: title for name, title in titles.items() if name != "install"})


def test_it_is_written_beside_the_pages(conf, titles, tmp_path: Path):
    """Of a build of pages that succeeded, and of no other."""
    nodes = {
        name: SimpleNamespace(astext=lambda title=title: title) for name, title in titles.items()
    }
    app = SimpleNamespace(
        outdir=tmp_path, builder=SimpleNamespace(name="html"), env=SimpleNamespace(titles=nodes)
    )
    conf["write_llms_txt"](app, ValueError("a page is wrong"))
    assert not list(tmp_path.iterdir())
    conf["write_llms_txt"](app, None)
    assert (tmp_path / "llms.txt").read_text() == conf["llms_txt"](titles)
