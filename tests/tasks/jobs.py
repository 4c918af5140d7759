"""The tasks of these tests: a worker finds a task by its path."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.tasks import task

from django_redlock import current_lease
from django_redlock.tasks import locked_task

log: list[Any] = []  # the arguments of bodies that have begun
bodies: list[Callable[[], Any]] = []  # what the next bodies do besides, each once


def held() -> Any:
    """The name that the running code holds."""
    lease = current_lease()
    return None if lease is None else lease.name


def body(value: Any) -> Any:
    """Note that a body has begun, do what is said, and tell what it holds."""
    log.append(value)
    said = bodies.pop(0)() if bodies else None
    return held() if said is None else said


@task
@locked_task("report:{year}")
def skipping(year):
    return body(year)


@task
@locked_task("report:{year}", on_conflict="retry")
def retrying(year):
    return body(year)


@task
@locked_task("report:{year}", on_conflict="retry")
async def awaiting(year):
    await asyncio.sleep(0)
    return body(year)


@task
@locked_task("report:{year}", on_conflict="retry", wait=60)
async def patient(year):
    body(year)
    await asyncio.Event().wait()


@task(takes_context=True)
@locked_task("report:{year}", on_conflict="retry")
def told(context, year):
    return [body(year), context.attempt]


@task
@locked_task(on_conflict="retry")
def keyless(year, *, month=1):
    return body(year)


@task
@locked_task("account:{account}", mode="until_finished")
def finished(account):
    return body(account)


@task
@locked_task("account:{account}", mode="until_started", on_conflict="retry")
def started(account):
    return body(account)


@task(takes_context=True)
@locked_task("account:{account}", mode="until_started", on_conflict="retry")
async def astarted(context, account):
    await asyncio.sleep(0)
    return body(account)


@task
@locked_task("account:{account}", mode="until_finished", on_duplicate="raise")
def strict(account):
    return body(account)


@task
@locked_task("account:{account}", mode="until_finished", on_duplicate="drop")
def dropping(account):
    return body(account)


@task
@locked_task("account:{account}", mode="until_finished", on_duplicate=lambda found: [found.id])
def calling(account):
    return body(account)


@task
@locked_task("digest:{user}", once=timedelta(hours=20), on_conflict="retry")
def daily(user):
    return body(user)


@task
@locked_task("digest:{user}", once=timedelta(hours=20), on_conflict="retry")
async def adaily(user):
    await asyncio.sleep(0)
    return body(user)


@task
@locked_task("digest:{user}", once=timedelta(hours=20), mode="until_finished", on_duplicate="raise")
def strict_daily(user):
    return body(user)


@task
def plain(value):
    return body(value)


@task
@locked_task("tenant:{tenant}", limit=2)
def limited(tenant):
    return body(tenant)


@task
@locked_task("tenant:{tenant}", limit=2)
async def alimited(tenant):
    return body(tenant)
