"""Pages in pieces, their words, and the ways to answers."""

from __future__ import annotations

import json
import re
import runpy
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import pytest

from dev.tools import find, walk, words
from dev.tools.prose import pages, pieces
from tests.docs.pages import PAGES, ROOT, blocks

PAGE = """\
# A title

Two words. `code()` is one word,
and [a link](elsewhere.md) two.

| a | table |
|---|---|

```python
x = 1  # code
```

:::{warning}
Prose inside.
:::

<!-- generated: settings -->

<!-- generated: tests
tests/test_layers.py::a_test
-->

(an-anchor)=
- An item.
- Another
  item.

% A comment of the source, which no page shows.
"""


def test_a_page_in_pieces():
    """Each with its kind and its line; a callout is prose, an anchor and a comment are nothing."""
    assert [(each.kind, each.line) for each in pieces(PAGE)] == [
        ("prose", 1),
        ("prose", 3),
        ("table", 6),
        ("code", 9),
        ("prose", 14),
        ("generated", 17),
        ("generated", 19),
        ("prose", 24),
        ("prose", 25),
    ]


def test_words_by_kind():
    """Prose, tables and code apart."""
    found = words.by_hand(PAGE)
    assert (found["prose"], found["table"]) == (2 + 10 + 2 + 2 + 2, 2)
    assert found["code"] > 0


def test_the_words_are_printed(tmp_path, monkeypatch, capsys):
    """By page and in sum, beside the budget; what only the built page has is generated."""
    source = ROOT / "docs/reference/checks.md"
    monkeypatch.setattr(words, "pages", lambda: [source])
    built = tmp_path / "reference/checks.html"
    built.parent.mkdir()
    built.write_text(f"<article>{'word ' * 10_000}</article>")
    words.main(tmp_path)
    head, row, total = capsys.readouterr().out.splitlines()
    own = words.by_hand(source.read_text())
    name, prose, budget, tables, code, generated, *_ = row.replace(",", "").split()
    assert head.split()[-1] == "generated"
    assert (name, int(prose), int(tables), int(code)) == (
        "reference/checks",
        *(own[kind] for kind in words.KINDS),
    )
    assert int(budget) == words.budgets()["reference/checks"]
    assert int(generated) == 10_000 - int(prose) - int(tables) - int(code)
    assert total.startswith("1 pages")


def test_the_budgets_are_those_of_a_book():
    """In sum not more than a reader may be asked to keep up with."""
    assert sum(words.budgets().values()) < 43_000


def test_every_page_is_counted():
    """Those of the site and the README; what is off the site, or included, is not."""
    found = {str(each.relative_to(ROOT)) for each in pages()}
    assert {"README.md", "docs/index.md", "docs/reference/checks.md"} <= found
    assert not any("docs/dev/" in each or "figures" in each for each in found)


# -- the walker -----------------------------------------------------------------------------------

HOME = """<nav><a href="answer.html">not in the text</a></nav><article>
<p>One two three <a href="far.html">four</a> five</p>
<p>six <a href="answer.html#there">seven</a> eight</p></article>"""
ANSWER = """<article><h1>Title<a class="headerlink" href="#">¶</a></h1><p>much to read before</p>
<section id="there"><h2>There</h2><p>Write <code>lock()</code>.
It\N{RIGHT SINGLE QUOTATION MARK}s safe.</p></section></article>"""


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """Pages as Sphinx builds them."""
    (tmp_path / "index.html").write_text(HOME)
    (tmp_path / "answer.html").write_text(ANSWER)
    (tmp_path / "far.html").write_text("<article><a href='answer.html'>x</a></article>")
    return tmp_path


def task(**changes: object) -> walk.Task:
    """A task that the pages answer."""
    wanted = walk.Task("a", "How?", "answer", ("Write lock().", "It's safe."), 2, 600)
    return wanted._replace(**changes)  # type: ignore[arg-type]


def test_the_shortest_way_is_counted(built):
    """Words up to the link, then from the heading to the end of the answer, whatever its quotes."""
    way = walk.walk(built, task())
    assert way == walk.Way(("index", "answer"), 7 + 5)
    assert walk.verdict(task(), way) == ""


def test_what_stands_above_the_heading_is_not_read(built):
    """So an answer there needs the page from its top, and the way over another page."""
    way = walk.walk(built, task(answer=("much to read before",)))
    assert way is not None
    assert way.pages == ("index", "far", "answer")
    assert "2 pages" in walk.verdict(task(), way)


def test_verdicts(built):
    """Too many words, no answer yet, and an answer that is not on its page."""
    assert "11 words" in walk.verdict(task(most_words=11), walk.walk(built, task()))
    assert walk.verdict(task(answer=()), walk.walk(built, task(answer=()))) == "no answer yet"
    elsewhere = task(answer=("nowhere",))
    assert "not on answer" in walk.verdict(elsewhere, walk.walk(built, elsewhere))


def test_it_fails_for_a_task_too_far(built, tmp_path, capsys):
    """But not where it only reports."""
    file = tmp_path / "tasks.toml"
    file.write_text("""
most = {pages = 2, words = 11}
[[task]]
letter = "a"
question = "How?"
page = "answer"
answer = ["Write lock()."]
[[task]]
letter = "b"
question = "Why?"
""")
    arguments = [str(built), "--tasks", str(file)]
    assert walk.main(arguments) == 1
    assert walk.main([*arguments, "--report"]) == 0
    assert "no answer yet" in capsys.readouterr().out


def test_the_tasks():
    """Ten, each with a question and a limit; on call less may be read."""
    found = walk.tasks()
    assert [each.letter for each in found] == list("abcdefghijklmnopqrst")
    assert all(each.question.endswith("?") for each in found)
    assert {each.letter: each.most_words for each in found if each.most_words != 600} == {"f": 300}
    assert all((ROOT / f"docs/{each.page}.md").is_file() for each in found if each.page)


# -- the search -----------------------------------------------------------------------------------


def test_what_people_type_is_found(tmp_path):
    """An entry of the index comes before words of titles and texts, as in Sphinx's script."""
    index = {
        "docnames": ["a", "b", "c"],
        "indexentries": {"stuck lock": [[1, "i", True]], "stuck": [[2, "j", False]]},
        "alltitles": {"Locks": [[0, None]]},
        "titleterms": {"lock": [0, 2]},
        "terms": {"stuck": [0, 1], "lock": 1},
    }
    (tmp_path / "searchindex.js").write_text(f"Search.setIndex({json.dumps(index)})")
    assert find.load(tmp_path) == index
    assert find.search(index, "Stuck lock") == ["b", "a"]
    assert set(find.search(index, "stuck")) == {"a", "b"}  # an entry that is no main one: not c
    assert find.search(index, "unheard-of") == []


def test_each_query_has_a_page():
    """The six that found nothing, or the wrong page, are among them."""
    conf = runpy.run_path(str(ROOT / "docs/conf.py"))
    queries = [query.lower() for _, found in conf["SEARCHED"] for query in found]
    assert len(queries) == len(set(queries))
    wanted = {"faq", "quickstart", "unique task", "stuck lock", "heroku", "force release"}
    assert wanted <= set(queries)
    for candidates, found in conf["SEARCHED"]:
        (page,) = [each for each in candidates if conf["entries_of"](each)][:1]
        assert set(found) <= set(conf["entries_of"](page))
    source = ["# Title\n\nText.\n"]
    conf["complete"](None, "how-to/testing", source)
    assert source[0].startswith("# Title\n\n```{index} ! pytest, ! mock a lock\n```\n")


def test_old_addresses_lead_to_pages():
    """A page that is there has no redirect; one that has gone leads to one that is there."""
    conf = runpy.run_path(str(ROOT / "docs/conf.py"))
    for old, new in conf["redirects"].items():
        assert not (ROOT / f"docs/{old}.md").exists()
        if new.startswith("https://"):
            assert (ROOT / new.partition("/blob/main/")[2]).is_file()
        else:
            assert (ROOT / "docs" / old).with_name(new).with_suffix(".md").is_file()


# -- the site -------------------------------------------------------------------------------------


def test_the_book_has_six_parts():
    """Each page of the site is in one of them, once."""
    text = (ROOT / "docs/index.md").read_text()
    assert re.findall(r"^:caption: (.*)$", text, re.MULTILINE) == [
        *("Start", "Use", "Celery and Django's tasks"),
        *("Operate", "Understand", "Reference"),
    ]
    listed = [
        line.rpartition("<")[2].rstrip(">")
        for tree in re.findall(r"^```\{toctree\}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
        for line in tree.splitlines()
        if line and not line.startswith(":")
    ]
    ours = {str(each.relative_to(ROOT / "docs").with_suffix("")) for each in pages()[1:]}
    assert sorted(listed) == sorted(ours - {"index"})


def test_what_the_pages_load_is_there():
    """Styles and scripts; the script leads old headings to where the texts lead them."""
    conf = runpy.run_path(str(ROOT / "docs/conf.py"))
    static = ROOT / "docs/_static"
    assert all((static / each).is_file() for each in conf["html_css_files"])
    assert all((static / each).is_file() for each in conf["html_js_files"])
    assert "checks.html" in (static / "moved.js").read_text()


def test_each_picture_is_shown():
    """A photograph or drawing that no page shows is out of date before anybody sees it."""
    read = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "example_project/README.md"]
    texts = [each.read_text() for each in read]
    shown = {
        Path(name).name for text in texts for name in re.findall(r"[\w./-]+\.(?:svg|png)", text)
    }
    there = {
        each.name for each in (ROOT / "docs/_static").rglob("*") if each.suffix in {".svg", ".png"}
    }
    assert there - shown == set()


def test_proofs_are_not_searched():
    """The pages are there, and Sphinx leaves them out."""
    conf = runpy.run_path(str(ROOT / "docs/conf.py"))
    metadata: dict[str, dict[str, str]] = defaultdict(dict)
    conf["hide"](SimpleNamespace(env=SimpleNamespace(metadata=metadata)), None)
    assert metadata == {page: {"nosearch": ""} for page in conf["NOT_SEARCHED"]}
    assert all((ROOT / f"docs/{page}.md").is_file() for page in metadata)


def test_a_copied_console_has_no_prompts():
    """The button takes what is typed; all prompts of the pages are known to it."""
    conf = runpy.run_path(str(ROOT / "docs/conf.py"))
    prompt = re.compile(conf["copybutton_prompt_text"])
    for page in PAGES:
        for block in blocks(page, nested=True):
            if block.language == "console":
                assert any(prompt.match(line) for line in block.text.splitlines()), block.text
