"""The page that people see when `single_flight` refuses their request."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeAlias

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.shortcuts import render

from . import story
from .forms import TokenField
from .models import Refusal

View: TypeAlias = Callable[..., HttpResponseBase]
REFUSALS = {409, 503}  # an equal request runs; no majority can tell


def with_a_page(*, taken: str, more: str) -> Callable[[View], View]:
    """Show people a page of this site when `single_flight` refuses; programs get its JSON.

    The page of a refused order shows the order that the first click made, once it is there. A
    refusal of a form is written down, so that the first page can count them.

    Args:
        taken: why the request is refused while the lock is held; by the same visitor or by any
            other, as the key says.
        more: what a visitor may want later.
    """

    def decorate(view: View) -> View:
        @wraps(view)
        def friendly(request: HttpRequest, show_id: int) -> HttpResponseBase:
            refusal = view(request, show_id)
            click = TokenField(required=False).clean(request.POST.get("click"))
            visitor = request.session.get("visitor", "")
            if refusal.status_code in REFUSALS and click:
                Refusal.objects.create(status=refusal.status_code, click=click, visitor=visitor)
            for_people = "json" not in refusal["Content-Type"] and request.accepts("text/html")
            if refusal.status_code not in REFUSALS or not for_people:
                return refusal
            status, retry = refusal.status_code, refusal.get("Retry-After")
            context: dict[str, Any] = {"taken": taken, "more": more, "show_id": show_id}
            context |= {"status": status, "retry": retry, "back": request.POST.get("back")}
            if click:
                context |= {"click": click, "wish": story.wish(visitor, click)}
            page = render(request, "box_office/refused.html", context, status=status)
            page["Cache-Control"] = "no-store"
            if retry is not None:
                page["Retry-After"] = retry
            return page

        return friendly

    return decorate
