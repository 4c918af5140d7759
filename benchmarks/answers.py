"""What users ask about speed, answered in sentences by the figures of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .result import Result
from .turns import Spread, number


class Question(NamedTuple):
    """A question, and its answer.

    Attributes:
        text: the question.
        answer: with ``{}`` in place of each figure's median.
        figures: by name, in the order of the answer.
    """

    text: str
    answer: str
    figures: tuple[str, ...]


QUESTIONS = (
    Question(
        "How long does a lock take?",
        "To acquire and release a free name on five nodes: {} ms by a thread, {} ms by a task, in "
        "the median. With 1 ms each way between client and nodes, to acquire takes {} round trips.",
        (
            "unpinned: threads, ms",
            "unpinned: asyncio, ms",
            "1 ms away: threads, round trips to acquire",
        ),
    ),
    Question(
        "How many a second?",
        "One process: {} by one thread, {} by eight threads, {} by 1,000 tasks of one event loop, "
        "{} with the settings for thousands of locks.",
        (
            "unpinned: 1 thread: locks per second",
            "unpinned: 8 threads: locks per second",
            "unpinned: 1000 tasks, as it is: locks per second",
            "unpinned: 1000 tasks, all settings: locks per second",
        ),
    ),
    Question(
        "What does a hung node cost?",
        "With one node of five hung a lock takes {} times as long as with all well by a thread, "
        "{} times by a task. A process in that node's queue waits at most {} s longer.",
        (
            "one node hung ÷ all well, threads",
            "one node hung ÷ all well, asyncio",
            "queue's node hung: longest wait, s more",
        ),
    ),
    Question(
        "How long does a waiter wait?",
        "For its turn: of 8 processes that hold a name for 5 ms each, one waits {} ms in the "
        "median, 35 of them for the seven others, and 99 of 100 waits take at most {} ms. From a "
        "release to the next one's return it takes {} ms.",
        (
            "8 waiters: wait, p50, ms",
            "8 waiters: wait, p99, ms",
            "8 waiters: release to the next one's return, ms",
        ),
    ),
    Question(
        "What does one node cost, beside redis-py's `Lock`?",
        "{} ms beside {} ms, {} times as long, for a fence and a guard against a node that was "
        "emptied. `cache.lock` of django-redis, which is redis-py's `Lock`, takes {} ms.",
        (
            "unpinned: one node: django-redlock, threads, ms",
            "unpinned: one node: redis-py Lock, ms",
            "unpinned: one node: threads ÷ redis-py Lock",
            "unpinned: one node: django-redis, cache.lock, ms",
        ),
    ),
)


def answer(
    results: Sequence[Result], questions: Sequence[Question] = QUESTIONS
) -> list[dict[str, str]]:
    """A row for each question of which some figure was measured; a dash for what was not."""
    figures = {name: value for result in results for name, value in result.figures.items()}
    rows = []
    for question in questions:
        found = [figures.get(name) for name in question.figures]
        if any(found):
            text = question.answer.format(*map(_median, found))
            rows.append({"question": question.text, "answer": text})
    return rows


def _median(found: Spread | None) -> str:
    return "–" if found is None else number(found.median)
