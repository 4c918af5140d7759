import asyncio
import re
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured, SynchronousOnlyOperation
from django.template import Context, Template, TemplateSyntaxError

from django_redlock import conf, redlock
from django_redlock.inspection.survey import LockState, LockStatus
from django_redlock.templatetags.redlock import redlock_state
from tests.support.looked_at import A, in_memory, put

PAGE = Path(__file__).parents[2] / "docs/how-to/status.md"


def render(text: str, **context: object) -> str:
    """What a page says."""
    return Template("{% load redlock %}" + text).render(Context(context))


WORDS = (
    '{% redlock_state "export:42" as export %}'
    "{% if not export.known %}unknown"
    "{% elif export.held %}{{ export.holder }} for {{ export.remaining|floatformat:0 }} s"
    "{% else %}free{% endif %}"
)


def test_held_and_free(memory):
    """A page can say who holds a lock and for how long, or that it is free."""
    assert render(WORDS) == "free"
    with redlock("export:42", ttl=30, renew=False):
        said = re.fullmatch(r"(.*) for (\d+) s", render(WORDS))
        assert said
        assert said[1] == conf.backend("default").label()
        assert 10 < int(said[2]) <= 30
    assert render(WORDS) == "free"
    assert redlock_state("export:42") == LockState("export:42", LockStatus.FREE)


def test_the_page_of_the_documentation(memory):
    """The template that the documentation shows says what is the case."""
    (text,) = re.findall(
        r"^```html\+django\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE
    )
    assert "<button>Export</button>" in render(text)
    with redlock("export:42", ttl=30, renew=False):
        assert re.search(r"for up to (2\d|30) s", render(text))
        memory.down = {0, 1, 2}
        assert "cannot tell" in render(text)


@pytest.mark.parametrize("down", [3, 4, 5])
def test_unknown(memory, down):
    """Without a majority nothing is known: it is not called held, and not free."""
    put(memory, "export:42", f"{A}:5:web-1", *range(5))
    memory.down = set(range(down))
    assert render(WORDS) == "unknown"
    assert redlock_state("export:42") == LockState("export:42", LockStatus.UNCLEAR)


def test_remaining_is_that_of_the_majority(memory):
    """It is free when fewer nodes than a majority have it; a key for ever never ends."""
    for i, left in enumerate((1, 5, 10, 15, 20)):
        due = memory.nodes[i].clock() + left * 1000
        memory.nodes[i].keys["redlock:lock:x"] = (f"{A}:5:web-1", due)
    assert redlock_state("x").remaining == pytest.approx(8, abs=2)
    for i in range(2):
        memory.nodes[i].keys["redlock:lock:x"] = (f"{A}:5:web-1", None)
    assert redlock_state("x").remaining == pytest.approx(18, abs=2)
    memory.nodes[2].keys["redlock:lock:x"] = (f"{A}:5:web-1", None)
    assert redlock_state("x").remaining is None


def test_an_alias():
    """Another alias is asked when it is named, and only then."""
    text = '{% redlock_state name alias="payments" as x %}{{ x.held }}'
    with in_memory("default", "payments"):
        with redlock.using("payments")("p"), redlock("d"):
            assert render(text, name="p") == "True"
            assert render(text, name="d") == "False"
        with pytest.raises(ImproperlyConfigured, match="no alias 'nope'"):
            redlock_state("x", alias="nope")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "is empty"),
        ("a\nb", "has control characters"),
        ("x" * 513, "is longer than 512 bytes"),
        ("export:{id}", "has braces"),
        (42, "must be a str, not int"),
        (["a", "b"], "must be a str, not list"),
    ],
)
def test_what_cannot_be_a_name(memory, name, why):
    """What cannot be locked cannot be asked for: the page says so to its author."""
    with pytest.raises(TemplateSyntaxError, match=f"redlock_state: .*{why}"):
        render("{% redlock_state name as x %}", name=name)
    with pytest.raises(TemplateSyntaxError, match="is empty"):
        render("{% redlock_state missing as x %}")


def test_an_event_loop_is_not_held_up(memory):
    """Rendered in a coroutine the tag refuses to block, as the ORM does."""

    async def page() -> str:
        return render(WORDS)

    with pytest.raises(SynchronousOnlyOperation):
        asyncio.run(page())
