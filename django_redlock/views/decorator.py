"""``@single_flight``: run one of several equal requests that arrive at the same time.

    @single_flight
    def checkout(request): ...

``running`` says in which order lock, transaction and view begin and end.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Never, TypeVar, Unpack, overload

from asgiref.sync import iscoroutinefunction

from django_redlock import redlock
from django_redlock.core.policy import check_seconds
from django_redlock.locks.options import refuse_keywords, without_unknown

from . import running
from .refusals import RETRY_AFTER, RetryAfter
from .responses import Answers, IgnoreRefusals, OnRefused
from .rules import Locks, Options, Rules, runs_unlocked, verbs_of

if TYPE_CHECKING:
    from django_redlock.locks.options import OnLost

    from .keys import Key, Names

View = Callable[..., Any]
V = TypeVar("V", bound=View)
DECORATES: Final = "single_flight_decorates"  # of a decorator: where a view belongs, it is none
EVERY: Final = "*"  # of REST framework's classes: every action
LOCKED: Final = "single_flight_rules"  # of such a class: decorators of handlers, by action
PLACED: Final = "single_flight_placed"  # of a wrapper, and of what a decorator makes of it
METHODS: Final = ("POST", "PUT", "PATCH", "DELETE")  # that are locked

__all__ = ["IgnoreRefusals", "single_flight"]


class Placed(NamedTuple):
    """What a wrapper tells the system checks of itself.

    Attributes:
        rules: its options.
        wrapper: itself; another function has this from it, by ``functools.wraps``.
    """

    rules: Rules
    wrapper: View


@overload
def single_flight(view: V, /, **options: Unpack[Options]) -> V: ...


@overload
def single_flight(
    key: Names | None = None,
    /,
    *,
    alias: str | None = None,
    ttl: float | None = None,
    wait: float | None = 0,
    min_hold: float = 0,
    renew: bool | None = None,
    max_hold: float | None = None,
    on_lost: OnLost = None,
    methods: Sequence[str] = METHODS,
    status: int = 409,
    retry_after: RetryAfter = RETRY_AFTER,
    on_refused: OnRefused = None,
    on_unavailable: str = "refuse",
    fail_open: bool | None = None,
) -> Callable[[V], V]: ...


@overload
def single_flight(*, key: Key | None, **options: Unpack[Options]) -> Callable[[V], V]: ...


@without_unknown
def single_flight(
    first: View | Names | None = None,
    /,
    *,
    key: Key | None = None,
    alias: str | None = None,
    ttl: float | None = None,
    wait: float | None = 0,
    min_hold: float = 0,
    renew: bool | None = None,
    max_hold: float | None = None,
    on_lost: OnLost = None,
    methods: Sequence[str] = METHODS,
    status: int = 409,
    retry_after: RetryAfter = RETRY_AFTER,
    on_refused: OnRefused = None,
    on_unavailable: str = "refuse",
    fail_open: bool | None = None,
    **unknown: Never,
) -> View:
    """Run one of several equal requests at a time; refuse the others at once.

    For ``def`` and ``async def`` views, and by ``method_decorator`` on ``dispatch`` for classes.
    The view finds its lease in ``request.lease``, which is None if the request was not locked.

    Args:
        key: which requests are equal: a name, or several, with fields from ``request``, from
            ``client`` (the user, else the session, else the address) and from the view's
            arguments; a field may have a default, as in ``{request.headers[X-Order]|none}``. Or,
            by keyword only, a function: ``key(request, *args, **kwargs)`` returns the name, or
            several. None: same client, method and path. A name that is too long becomes a digest.
        alias: the alias whose nodes decide. None: "default".
        ttl: seconds after which the nodes forget a process that does not renew its lease. None:
            the alias's TTL.
        wait: seconds that a request may wait for its turn, occupying a worker. None: the alias's
            WAIT. If MAX_WAITING_REQUESTS of the process wait already, it does not, and is
            answered 503 unless the lock is free.
        min_hold: seconds, from the start, during which an equal request is refused, also when
            the first one has finished.
        renew: whether a watchdog renews the lease while the view runs. None: RENEW.
        max_hold: seconds after which the watchdog stops; ``float("inf")``: never. None: MAX_HOLD.
        on_lost: a plain function, called with the lease when it is lost; or "raise": LeaseLost when
            the view has returned, inside the transactions of ATOMIC_REQUESTS, which roll back.
        methods: the HTTP methods that are locked, and HEAD with GET; others pass.
        status: of the response while an equal request runs: 409, 423 or 429.
        retry_after: the ``Retry-After`` of that response, seconds, rounded up: a number, or a
            function that is called with the LockTaken.
        on_refused: makes the response of a refused request: a function, called with the request
            and the ``Refusal``, which may return None for the usual response; or the name of a
            template, for clients that do not want JSON, with ``refusal`` in its context.
        on_unavailable: "refuse": answer 503 when no majority of the nodes can be asked; "run": run
            the view without the lock, ``request.lease`` being None.
        fail_open: deprecated; True is ``on_unavailable="run"``.

    The response to a request that lacks what a field names, such as a header, is a 400, and so is
    that to a request for which the function raises ValueError or returns "".

    Raises:
        TypeError, ValueError: an argument makes no sense, or nothing can fill a field.
    """
    if unknown:
        refuse_keywords("single_flight", unknown, ("key", *Options.__annotations__))
    if wait is not None:
        check_seconds("wait", wait, zero=True)
    answers = Answers(status, retry_after, on_refused)
    unlocked = runs_unlocked(on_unavailable, fail_open=fail_open)
    view = first if callable(first) else None
    if first is not None and view is None:
        if key is not None:
            msg = "single_flight got two keys: one as its first argument, and one as key="
            raise TypeError(msg)
        key = first
    template = redlock.using(
        alias,
        ttl=ttl,
        wait=wait,
        renew=renew,
        max_hold=max_hold,
        min_hold=min_hold,
        on_lost=on_lost,
        quiet=not unlocked,
    )
    locks = Locks(template, key)
    rules = Rules(template.alias, locks, verbs_of(methods), answers, wait, unlocked)
    if view is not None:
        return _decorate(rules, view)
    decorates = functools.partial(_decorate, rules)
    decorates.__dict__[DECORATES] = True
    return decorates


def _decorate(rules: Rules, view: Any) -> View:
    if not callable(view):
        msg = (
            f"single_flight(...) decorates a view, not {type(view).__name__}: in urls.py write "
            "single_flight('pay:{pk}')(view)"
        )
        raise TypeError(msg)
    if _of_rest_framework(view):
        msg = (
            "REST framework authenticates inside of the view, so this lock would know no user of a "
            "token: on the class, or above @api_view, write @single_flight(...) of "
            "django_redlock.views.rest_framework"
        )
        raise TypeError(msg)
    if _is_method(view):
        msg = (
            f"{view.__qualname__} is a method, whose first argument is no request: write "
            "@method_decorator(single_flight(...)); for a view of REST framework, on its class, "
            "@single_flight(...) of django_redlock.views.rest_framework"
        )
        raise TypeError(msg)
    if isinstance(view, type):
        msg = (
            f"{view.__qualname__} is a class: write "
            "@method_decorator(single_flight(...), name='dispatch')"
        )
        raise TypeError(msg)
    wrapped = (running.awaiting if _is_async(view) else running.blocking)(rules, view)
    if not isinstance(view, functools.partial):  # of method_decorator: made for one request
        _resolve_annotations(wrapped, view)
        wrapped.__dict__[PLACED] = Placed(rules, wrapped)
    return wrapped


def _resolve_annotations(wrapped: Any, view: View) -> None:
    """Let frameworks read annotations that are text; they look these up in the wrapper's module."""
    with suppress(NameError, AttributeError, SyntaxError, TypeError, ValueError):
        wrapped.__signature__ = inspect.signature(view, eval_str=True)


def _is_method(view: View) -> bool:
    """Tell whether it is a method as its class has it, by the name that everybody uses."""
    # A partial is of method_decorator and has its object; what as_view() makes is no method.
    if isinstance(view, functools.partial) or hasattr(view, "view_class"):
        return False
    with suppress(TypeError, ValueError):
        return next(iter(inspect.signature(view).parameters), "") == "self"
    return False


def _of_rest_framework(view: View) -> bool:
    """Tell whether it is a view of REST framework, or a method of one."""
    bound = view.func if isinstance(view, functools.partial) else None
    cls = getattr(view, "cls", type(getattr(bound, "__self__", None)))
    cls = view if isinstance(view, type) else cls
    return any(each.__module__.startswith("rest_framework.") for each in cls.__mro__)


def _is_async(view: View) -> bool:
    """Return True if calling the view gives an awaitable.

    ``View.dispatch`` is a plain function that returns what an async handler returns;
    ``method_decorator`` passes it as a partial of the bound method.
    """
    bound = view.func if isinstance(view, functools.partial) else None
    owner = getattr(bound, "__self__", None)
    return iscoroutinefunction(view) or bool(getattr(type(owner), "view_is_async", False))
