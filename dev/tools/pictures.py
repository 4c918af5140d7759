"""`make pictures`: the drawings of README and documentation, each from its data below.

Each is drawn on a sheet of the museum, as wide as a telephone, with colours for light and dark. A
figure that is a default of the package is read there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from dev.museum.drawing import ABOVE, EDGE, LINE, WIDTH, Sheet, box, line
from django_redlock.conf import DEFAULTS
from django_redlock.core.policy import LEAST_DRIFT

FOLDER: Final = Path(__file__).resolve().parents[2] / "docs/_static/pictures"
RIGHT: Final = WIDTH - EDGE
TTL: Final[float] = DEFAULTS["TTL"]
MARGIN: Final[float] = TTL * DEFAULTS["CLOCK_DRIFT"] + LEAST_DRIFT  # by which clocks may run apart
STYLE: Final = """\
.museum{--soft:#dce8fb;--pale:#eceef2;--gap:#fbe3e1}
@media (prefers-color-scheme:dark){.museum{--soft:#1e3a68;--pale:#262b33;--gap:#4a2320}}
.museum .small{font-size:12px}.museum .code{font:12px ui-monospace,Menlo,Consolas,monospace}
.museum .soft{fill:var(--soft);stroke:var(--hold)}.museum .pale{fill:var(--pale);stroke:var(--lane)}
.museum .gap{fill:var(--gap)}.museum .over{fill:var(--gap);stroke:var(--red)}
.museum .gone{stroke:var(--lane);stroke-dasharray:2 4}
.museum .arrow{stroke:var(--muted);stroke-width:1.5}.museum .head{fill:var(--muted)}
.museum .yes{fill:var(--ink)}.museum .no{fill:var(--ground);stroke:var(--ink);stroke-width:1.5}
.museum .cross{stroke:var(--red);stroke-width:2}
"""


class Drawing(Sheet):
    """A sheet with what these pictures have in common."""

    def file(self, title: str, desc: str) -> str:
        """Return it as a file."""
        return self.svg(title, desc, STYLE)

    def boxed(self, kind: str, left: float, right: float, texts: Sequence[tuple[str, str]]) -> None:
        """Draw a box around paragraphs, each with its kind of letters."""
        top = self.y
        self.y += 6
        for words, letters in texts:
            self.paragraph(words, letters, left + 8, right - 8)
        self.y += 7
        self.under.append(box(kind, left, top, right - left, self.y - top))

    def arrow(self, x1: float, y1: float, x2: float, y2: float) -> None:
        """Draw an arrow to the right, to the left or down."""
        ahead = (x2 > x1) - (x2 < x1)
        if ahead:
            x1, x2 = x1 + 2 * ahead, x2 - 2 * ahead
            corners = f"M{x2:g} {y2:g}l{-8 * ahead} -4v8z"
        else:
            y1, y2 = y1 + 2, y2 - 2
            corners = f"M{x2:g} {y2:g}l-4 -8h8z"
        self.under.append(line("arrow", x1, y1, x2 - 6 * ahead, y2 - 6 * (not ahead)))
        self.under.append(f'<path class="head" d="{corners}"/>')

    def cross(self, x: float, y: float) -> None:
        """Draw a cross."""
        self.over.append(line("cross", x - 4, y - 4, x + 4, y + 4))
        self.over.append(line("cross", x - 4, y + 4, x + 4, y - 4))


# -- votes and a lease ----------------------------------------------------------------------------


class Moment(NamedTuple):
    """What happens at a time.

    Attributes:
        votes: of the nodes that reply, a letter each: "y" yes, "n" no, "-" none.
    """

    at: float
    words: str
    votes: str = ""


DOWN: Final = 3  # the node that is dead
RENEWED: Final = TTL / 3
VOTES: Final = (
    Moment(0, f"A asks all five at once: “If the name is free, keep it for A for {TTL:g} s.”"),
    Moment(
        0,
        f"Four vote yes, node {DOWN} is down. Three are a majority: A has the lease.",
        "yy-yy",
    ),
    Moment(RENEWED, f"A renews the lease: {TTL:g} s from now. Three would do.", "yy-yy"),
    Moment(RENEWED + 2, "B asks. Four vote no, so B waits.", "nn-nn"),
    Moment(RENEWED + 5, "The process of A is killed. Nobody renews the lease."),
    Moment(
        RENEWED + TTL - MARGIN,
        f"The lease of A is over, {MARGIN:.1f} s before the keys: clocks run apart.",
    ),
    Moment(
        RENEWED + TTL,
        "The keys expire. B asks again, four vote yes: B has the lease.",
        "yy-yy",
    ),
)
FIRST, RENEWAL, KILLED, DEADLINE, SECOND = 1, 2, 4, 5, 6  # of these moments


def votes() -> str:
    """Five nodes, votes and a lease."""
    paper = Drawing()
    paper.paragraph("Five nodes, and one lock", "bold")
    paper.paragraph("Time runs down, in seconds. A and B want one name.", "muted")
    paper.y += 6
    nodes = [58 + 20 * number for number in range(5)]
    clients = {"A": 170, "B": 192}
    paper.text(98, paper.y + ABOVE, "nodes", "middle muted")
    paper.y += LINE
    for number, x in enumerate(nodes, 1):
        paper.text(x, paper.y + ABOVE, str(number), "middle")
    for name, x in clients.items():
        paper.text(x, paper.y + ABOVE, name, "middle bold")
    paper.y += LINE + 5
    top, ys = paper.y, []
    for moment in VOTES:
        y = paper.y + LINE / 2
        ys.append(y)
        if moment is not VOTES[FIRST]:  # at the time of the one before
            paper.text(42, y + 4, f"{moment.at:.3g}", "muted end")
        for x, vote in zip(nodes, moment.votes, strict=False):
            if vote != "-":
                kind = {"y": "yes", "n": "no"}[vote]
                paper.over.append(f'<circle class="{kind}" cx="{x}" cy="{y:g}" r="4.5"/>')
        paper.paragraph(moment.words, left=212)
        paper.y += 9
    bottom = paper.y - 4
    for number, x in enumerate(nodes, 1):
        if number == DOWN:
            paper.under.append(line("gone", x, top, x, bottom))
            paper.cross(x, ys[0])
        else:
            paper.under.append(line("lane", x, top, x, bottom))
            paper.under.append(box("soft", x - 6, ys[FIRST], 12, ys[SECOND] - ys[FIRST] - 9))
            paper.under.append(box("soft", x - 6, ys[SECOND], 12, bottom - ys[SECOND]))
    for x in clients.values():
        paper.under.append(line("lane", x, top, x, bottom))
    a, b = clients["A"], clients["B"]
    paper.under.append(box("hold", a - 7, ys[FIRST], 14, ys[KILLED] - ys[FIRST]))
    paper.under.append(box("stop", a - 7, ys[KILLED], 14, ys[DEADLINE] - ys[KILLED]))
    paper.cross(a, ys[KILLED])
    paper.under.append(box("hold", b - 7, ys[SECOND], 14, bottom - ys[SECOND]))
    paper.y += 4
    paper.paragraph("Filled dot: a vote yes; ring: a vote no.", "small muted")
    paper.paragraph("Pale: a key on a node. Blue: the lease.", "small muted")
    paper.paragraph("Hatched: a lease whose holder is dead.", "small muted")
    return paper.file("Five nodes, votes and a lease", told(VOTES))


def told(moments: Iterable[Moment]) -> str:
    """Return what happens, in words."""
    return " ".join(f"{moment.at:.3g} s: {moment.words}" for moment in moments)


# -- the states of a name -------------------------------------------------------------------------


class Way(NamedTuple):
    """From held to free.

    Attributes:
        state: what is between; "": nothing.
        why: how a name comes there.
        end: when it is free.
    """

    state: str
    why: str
    end: str


WAYS: Final = (
    Way("", "The holder releases it.", "free at once"),
    Way("resting", "Released before its min_hold is over.", "free when min_hold is over"),
    Way(
        "revoked",
        "Taken away by redlock_release or revoke(). The holder learns of it when it renews.",
        "free when the holder lets go, at the latest after its deadline",
    ),
    Way(
        "lost",
        "No majority renewed the lease in time: the holder is dead, paused or cut off.",
        "free when the keys expire, at the latest one ttl after the last renewal",
    ),
)
TAKEN: Final = "A majority of the nodes votes yes."
KEPT: Final = "Renewed at each third of its ttl."


def states() -> str:
    """The states of a name."""
    paper = Drawing()
    paper.paragraph("The states of a name", "bold")
    paper.y += 8
    top = paper.y
    free, held = (EDGE, EDGE + 50), (RIGHT - 50, RIGHT)
    left, right = free[1] + 28, held[0] - 28
    paper.y += 26
    paper.paragraph(TAKEN, "small middle", free[1] + 8, held[0] - 8)
    paper.y += 8
    paper.arrow(free[1], paper.y, held[0], paper.y)
    paper.y += 12
    paper.paragraph(KEPT, "small middle muted", left, right)
    paper.y += 10
    for way in WAYS:
        begin = paper.y
        if way.state:
            texts = [(way.state, "bold"), (way.why, "small"), (f"→ {way.end}", "small muted")]
            paper.boxed("pale", left, right, texts)
            middle = (begin + paper.y) / 2
            paper.arrow(held[0], middle, right, middle)
            paper.arrow(left, middle, free[1], middle)
        else:
            paper.paragraph(f"{way.why} → {way.end}", "small middle", free[1] + 8, held[0] - 8)
            paper.y += 8
            paper.arrow(held[0], paper.y, free[1], paper.y)
        paper.y += 12
    for kind, (x1, x2), name in [("pale", free, "free"), ("soft", held, "held")]:
        paper.under.append(box(kind, x1, top, x2 - x1, paper.y - top))
        paper.text((x1 + x2) / 2, top + 18, name, "bold middle")
    words = [f"{way.state or 'Released'}: {way.why} {way.end}." for way in WAYS]
    return paper.file("The states of a name", " ".join([f"Free to held: {TAKEN} {KEPT}", *words]))


# -- charts: time runs to the right ---------------------------------------------------------------


class Bar(NamedTuple):
    """What lasts for some time, in a row; its words are in it."""

    row: str
    kind: str
    start: float
    end: float
    words: str = ""


class Note(NamedTuple):
    """What happens at a time, in a row: a cross and words behind it, or before it."""

    row: str
    at: float
    words: str
    is_wrong: bool = True
    before: bool = False


class Chart(NamedTuple):
    """One panel.

    Attributes:
        code, words: more titles.
        rows: from the top down.
        gap: a time in which something is wrong.
        verdict: what is to be seen, and its kind.
    """

    title: str
    rows: Sequence[str]
    bars: Sequence[Bar]
    notes: Sequence[Note] = ()
    code: str = ""
    words: str = ""
    gap: tuple[float, float] | None = None
    verdict: tuple[str, str] = ("", "")


ROW, THICK = 25, 19  # px: of a row, of a bar


def chart(paper: Drawing, panel: Chart, left: float, scale: float) -> None:
    """Draw a panel, whose time 0 is at ``left`` and whose unit has ``scale`` px."""
    paper.paragraph(panel.title, "bold")
    paper.paragraph(panel.code, "code muted")
    paper.paragraph(panel.words, "small muted")
    paper.y += 4
    top = paper.y
    tops = {row: top + ROW * number for number, row in enumerate(panel.rows)}
    bottom = top + ROW * len(panel.rows)
    if panel.gap:
        start, end = panel.gap
        x = left + start * scale
        paper.under.append(box("gap", x, top - 2, (end - start) * scale, bottom - top + 2))
    for row, y in tops.items():
        paper.text(EDGE, y + 14, row, "small")
        paper.under.append(line("lane", left, y + THICK + 2, RIGHT, y + THICK + 2))
    for bar in panel.bars:
        x, y, size = left + bar.start * scale, tops[bar.row], (bar.end - bar.start) * scale
        paper.under.append(box(bar.kind, x, y, size, THICK))
        if bar.words:
            paper.text(x + size / 2, y + 14, bar.words, "small middle")
    for note in panel.notes:
        x, y = left + note.at * scale, tops[note.row]
        if note.is_wrong:
            paper.cross(x, y + THICK / 2)
        kind = "small muted end" if note.before else "small muted"
        paper.text(x - 8 if note.before else x + 8, y + 14, note.words, kind)
    paper.y = bottom + 3
    words, kind = panel.verdict
    paper.paragraph(words, f"{kind} small")


def charts(
    title: str, panels: Sequence[Chart], left: float, until: float, legend: Sequence[str] = ()
) -> str:
    """Draw panels under each other; the last of the time is ``until``."""
    paper = Drawing()
    paper.text(RIGHT, paper.y + ABOVE, "time →", "small muted end")
    for panel in panels:
        chart(paper, panel, left, (RIGHT - left) / until)
        paper.y += 14
    for words in legend:
        paper.paragraph(words, "small muted")
    paper.y -= 0 if legend else 14
    return paper.file(title, " ".join([*map(described, panels), *legend]))


def described(panel: Chart) -> str:
    """Return what a panel shows, in words."""
    parts = [(bar.start, f"{bar.row}: {bar.words}") for bar in panel.bars if bar.words]
    parts += [(note.at, f"{note.row}: {note.words}") for note in panel.notes]
    found = "; ".join(words for _, words in sorted(parts))
    return f"{panel.title}. {found}. {panel.verdict[0]}".strip()


# -- a double click -------------------------------------------------------------------------------

CLICKS: Final = (
    Chart(
        "With the lock: charged once",
        ("1st click", "2nd click"),
        [Bar("1st click", "soft", 0, 6, "charges the card")],
        [Note("2nd click", 1, "refused: the first is at work")],
        code='with redlock("invoice:42"):',
    ),
    Chart(
        "Without it: charged twice",
        ("1st click", "2nd click"),
        [
            Bar("1st click", "soft", 0, 6, "charges the card"),
            Bar("2nd click", "over", 1, 7, "charges the card again"),
        ],
    ),
)


# -- lock and transaction -------------------------------------------------------------------------

ROWS: Final = ("A lock", "A database", "B lock", "B database")
TOO_EARLY: Final = (
    "In the red time B reads the row without what A has written: one of the two updates is lost."
)
TRANSACTIONS: Final = (
    Chart(
        "Right: the lock outside",
        ROWS,
        [
            Bar("A lock", "soft", 0, 5.2, "lock … release"),
            Bar("A database", "pale", 0.3, 4.9, "BEGIN … COMMIT"),
            Bar("B lock", "stop", 1, 5.2),
            Bar("B lock", "soft", 5.2, 10.4, "lock … release"),
            Bar("B database", "pale", 5.5, 10.1, "BEGIN … COMMIT"),
        ],
        code='with redlock("invoice:7").atomic():',
        verdict=("B begins after the COMMIT of A, and reads what A wrote.", ""),
    ),
    Chart(
        "Wrong: the lock inside",
        ROWS,
        [
            Bar("A database", "pale", 0, 6.6, "BEGIN … COMMIT"),
            Bar("A lock", "soft", 0.3, 4.5, "lock … release"),
            Bar("B lock", "stop", 1.3, 4.5),
            Bar("B lock", "soft", 4.5, 8.7, "lock … release"),
            Bar("B database", "pale", 1, 10.4, "BEGIN … COMMIT"),
        ],
        code='with transaction.atomic(), redlock("invoice:7"):',
        gap=(4.5, 6.6),
        verdict=(TOO_EARLY, "alarm"),
    ),
)


# -- Celery's modes -------------------------------------------------------------------------------

BUSY, RUN, LAST = 3.0, 3.0, 15.0  # when the first one runs, for how long, and the end of the time
SENT: Final = {"1": 0.0, "2": 1.0, "3": 4.0, "4": 5.0, "5": 11.5}  # messages of one key
#: What becomes of each message in a mode: a time from which it runs; or why it does not.
MODES: Final[Mapping[str, tuple[str, Mapping[str, float | str]]]] = {
    "while_running": (
        "One runs at a time; one that finds the key held is skipped.",
        {
            "1": BUSY,
            "2": "skipped: 1 runs",
            "3": "skipped: 1 runs",
            "4": "skipped: 1 runs",
            "5": 12.0,
        },
    ),
    "until_started": (
        'One waits, and one runs. Here with on_conflict="retry".',
        {"1": BUSY, "2": "not sent: 1 waits", "3": 6.5, "4": "not sent: 3 waits", "5": 12.0},
    ),
    "until_finished": (
        "One waits or runs; no other one is sent.",
        {
            "1": BUSY,
            "2": "not sent: 1 waits",
            "3": "not sent: 1 runs",
            "4": "not sent: 1 runs",
            "5": 12.0,
        },
    ),
}
LEGEND: Final = (
    "Five messages of one key; all workers are busy at first.",
    "Grey: in the queue. Blue: runs. Cross: never runs.",
)


def modes() -> list[Chart]:
    """Return a panel for each of Celery's modes."""
    panels = []
    for mode, (words, fates) in MODES.items():
        bars, notes = [], []
        for message, fate in fates.items():
            sent = SENT[message]
            queued_to = fate if isinstance(fate, float) else sent
            if isinstance(fate, str) and fate.startswith("skipped"):
                queued_to = max(sent, BUSY) + 0.3
            if queued_to > sent:
                bars.append(Bar(message, "pale", sent, queued_to))
            if isinstance(fate, float):
                bars.append(Bar(message, "soft", fate, fate + RUN, "runs"))
            else:
                notes.append(Note(message, queued_to, fate))
        panels.append(Chart(mode, list(SENT), bars, notes, words=words))
    return panels


# -- up to k at once ------------------------------------------------------------------------------

SLOTS: Final = Chart(
    "Up to three at once",
    ("slot 0", "slot 1", "slot 2", "D", "E", "F", "G"),
    [
        Bar("slot 0", "soft", 0, 5, "A"),
        Bar("slot 0", "soft", 5, 12, "D"),
        Bar("slot 1", "soft", 0.5, 3, "B"),
        Bar("slot 1", "stop", 3, 7),
        Bar("slot 1", "soft", 7, 12, "E"),
        Bar("slot 2", "soft", 1, 9, "C"),
        Bar("slot 2", "soft", 9, 12, "F"),
        Bar("D", "pale", 1.5, 5, "waits"),
        Bar("E", "pale", 2, 7, "waits"),
        Bar("F", "pale", 6, 9, "waits"),
    ],
    [
        Note("D", 4.8, "gets slot 0", is_wrong=False),
        Note("E", 6.8, "gets slot 1", is_wrong=False),
        Note("F", 8.8, "gets slot 2", is_wrong=False),
        Note("G", 4, "refused: with wait=0"),
    ],
    code='redlock("openai", limit=3, wait=30)',
    verdict=(
        "B is killed: its slot stays taken for the rest of its ttl (hatched), the others go on.",
        "",
    ),
)


# -- which lock -----------------------------------------------------------------------------------


class Choice(NamedTuple):
    """A question, and what to take if its answer is yes."""

    question: str
    take: str
    more: str
    letters: str = "bold"


CHOICES: Final = (
    Choice(
        "Can one statement or a unique key do it?",
        "UPDATE … WHERE",
        "or a constraint: no lock",
        "code",
    ),
    Choice(
        "Rows of one database, in one short transaction?",
        "select_for_update()",
        "a lock of the database",
        "code",
    ),
    Choice(
        "May the work stop, or run twice, when one server fails?",
        "one node",
        "the Redis you have",
    ),
    Choice("Is it enough that one server may fail?", "three nodes", "go on without one"),
)
OTHERWISE: Final = Choice("", "five nodes", "go on without two")
FENCE: Final = (
    "Whatever the number of nodes: if the work writes rows, let a fence refuse a holder that slept"
    " past its lease."
)


def choices() -> str:
    """Which lock."""
    paper = Drawing()
    paper.paragraph("Which lock?", "bold")
    paper.y += 8
    middle = 192
    for choice in CHOICES:
        top = paper.y
        paper.boxed("pale", EDGE, middle - 10, [(choice.question, "")])
        asked, paper.y = paper.y, top
        answers = [(choice.take, choice.letters), (choice.more, "small")]
        paper.boxed("soft", middle + 30, RIGHT, answers)
        y = (top + min(asked, paper.y)) / 2
        paper.arrow(middle - 10, y, middle + 30, y)
        paper.text(middle + 8, y - 5, "yes", "small muted middle")
        paper.y = max(asked, paper.y)
        paper.arrow(60, asked, 60, paper.y + 24)
        paper.text(68, (asked + paper.y + 24) / 2 + 4, "no", "small muted")
        paper.y += 24
    texts = [(OTHERWISE.take, "bold"), (OTHERWISE.more, "small")]
    paper.boxed("soft", EDGE, middle - 10, texts)
    paper.y += 8
    paper.paragraph(FENCE, "small")
    said = [f"{each.question} Yes: {each.take}, {each.more}." for each in CHOICES]
    last = f"No: {OTHERWISE.take}, {OTHERWISE.more}."
    return paper.file("Which lock?", " ".join([*said, last, FENCE]))


# -- all of them ----------------------------------------------------------------------------------

PICTURES: Final[Mapping[str, Callable[[], str]]] = {
    "votes": votes,
    "states": states,
    "double-click": lambda: charts("A double click", CLICKS, 76, 7.2),
    "transaction": lambda: charts(
        "A lock and a transaction", TRANSACTIONS, 86, 10.5, ["Hatched: waits for the lock."]
    ),
    "celery-modes": lambda: charts("Celery's modes", modes(), 26, LAST, LEGEND),
    "slots": lambda: charts("Up to three at once", [SLOTS], 56, 12),
    "which-lock": choices,
}


def main() -> None:
    """Draw all of them."""
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        path = FOLDER / f"{name}.svg"
        path.write_text(draw(), encoding="utf-8")
        print(f"{path.name}  {path.stat().st_size / 1024:.1f} kB")


if __name__ == "__main__":
    main()
