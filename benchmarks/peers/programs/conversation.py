"""How a peer's program is spoken to: a line of JSON in, a line of JSON out.

    ["acquire", key, ttl]         one attempt; true or false. ttl in milliseconds
    ["extend", ttl]               the lock acquired last; true or false
    ["release"]                   the same; false if the client says that it was not its own
    ["measure", key, ttl, count]  acquire and release, so often: microseconds of each pair

What a client raises is answered as {"error": "…"}. The program ends with its input.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any


def serve(client: Any) -> None:
    """Do as told with a client whose methods are `acquire`, `extend` and `release`."""
    _serve(lambda verb, *words: getattr(client, verb)(*words), lambda *how: _measure(client, *how))


def serve_asyncio(client: Any) -> None:
    """The same for a client whose methods are coroutine functions, in one event loop."""
    with asyncio.Runner() as runner:
        _serve(
            lambda verb, *words: runner.run(getattr(client, verb)(*words)),
            lambda *how: runner.run(_measure_asyncio(client, *how)),
        )


def _serve(call: Any, measure: Any) -> None:
    _say("ready")
    for line in sys.stdin:
        verb, *words = json.loads(line)
        try:
            _say(measure(*words) if verb == "measure" else call(verb, *words))
        except Exception as error:  # noqa: BLE001 - it is told, with its type
            _say({"error": f"{type(error).__name__}: {error}"})


def _say(answer: Any) -> None:
    print(json.dumps(answer), flush=True)


def _measure(client: Any, key: str, ttl: int, count: int) -> list[float]:
    taken = []
    for _ in range(count):
        start = time.perf_counter_ns()
        if not client.acquire(key, ttl):
            raise RuntimeError("somebody else has it")
        client.release()
        taken.append((time.perf_counter_ns() - start) / 1000)
    return taken


async def _measure_asyncio(client: Any, key: str, ttl: int, count: int) -> list[float]:
    taken = []
    for _ in range(count):
        start = time.perf_counter_ns()
        if not await client.acquire(key, ttl):
            raise RuntimeError("somebody else has it")
        await client.release()
        taken.append((time.perf_counter_ns() - start) / 1000)
    return taken
