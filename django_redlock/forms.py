"""The form of the admin page that takes a lock away, and the mark of the holder that it shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from django import forms
from django.core import signing
from django.utils.translation import gettext, gettext_lazy, pgettext_lazy

from .backend import Backend
from .inspection.revoke import LONGEST
from .inspection.survey import HeldLock

SEEN_FOR: Final = 60  # seconds after which the holder that was seen must be looked at again
SALT: Final = "django_redlock.admin.release"


def reason(read_by: Any) -> forms.CharField:
    """Return the field of the reason; ``read_by``, a lazy text, says who reads it."""
    return forms.CharField(
        label=pgettext_lazy("redlock", "Reason"),
        max_length=LONGEST,
        help_text=read_by,
        widget=forms.TextInput(attrs={"class": "vTextField"}),
    )


class AgainForm(forms.Form):
    """Why work that is done once is to be done again: the work that the page has shown."""

    reason = reason(gettext_lazy("The admin's log has it, with your name."))
    seen = forms.CharField(widget=forms.HiddenInput)


class ReleaseForm(AgainForm):
    """Why a lock is taken away, how, and from which holder: the one that the page has shown."""

    reason = reason(gettext_lazy("The holder's error and the log have it, with your name."))
    now = forms.BooleanField(
        label=gettext_lazy("Delete the key now"),
        required=False,
        help_text=gettext_lazy(
            "The name is free at once, and the holder works on until it renews: two may believe "
            "that they have it. Without this the name is free when the holder's time is over."
        ),
    )
    sure = forms.BooleanField(
        label=gettext_lazy(
            "Two holders do no harm here: only rows that a fence guards are written"
        ),
        required=False,
        help_text=gettext_lazy("Needed for “Delete the key now”."),
    )

    def clean_sure(self) -> bool:
        """Want the confirmation of a deletion."""
        sure: bool = self.cleaned_data["sure"]
        if self.cleaned_data.get("now") and not sure:
            raise forms.ValidationError(gettext("Confirm this, or do not delete the key now."))
        return sure


def whom(backend: Backend, lock: HeldLock) -> Sequence[str]:
    """Return what tells a holder from the next one."""
    return [backend.alias, lock.entry, lock.owners[0].owner]


def was_seen(mark: str, backend: Backend, lock: HeldLock) -> bool:
    """Return True if a page has shown this holder a moment ago, as its mark says."""
    try:
        return bool(signing.loads(mark, salt=SALT, max_age=SEEN_FOR) == whom(backend, lock))
    except signing.BadSignature:  # SignatureExpired, too
        return False


def seen(backend: Backend, lock: HeldLock) -> str:
    """Return the signed mark of the holder that a page shows."""
    return signing.dumps(whom(backend, lock), salt=SALT)
