import uuid
from typing import Any

from django import forms

MOST_SEATS = 8


class TokenField(forms.UUIDField):
    """A hidden field; what is no token of this site's forms counts as none."""

    widget = forms.HiddenInput({"autocomplete": "off"})  # a reload must not keep the old one

    def clean(self, value: Any) -> uuid.UUID | None:
        try:
            return super().clean(value)  # type: ignore[no-any-return]
        except forms.ValidationError:
            return None


class NameForm(forms.Form):
    name = forms.CharField(max_length=100, widget=forms.TextInput({"autocomplete": "name"}))


class OrderForm(NameForm):
    """An order.

    Each page that is rendered has forms with a token of their own: orders with the same token
    come from one form, and so from one double click.
    """

    seats = forms.IntegerField(min_value=1, max_value=MOST_SEATS, initial=2)
    click = TokenField(required=False)
    back = forms.CharField(required=False, widget=forms.HiddenInput)  # "index" or nothing


def order_form(name: str, *, auto_id: str = "id_%s", back: str = "") -> OrderForm:
    """Make a form to be filled in, by somebody whose name may be known."""
    initial = {"name": name, "click": uuid.uuid4(), "back": back}
    return OrderForm(initial=initial, auto_id=auto_id, label_suffix="")


def name_form(name: str) -> NameForm:
    """Make the form beside the plan of seats."""
    return NameForm(initial={"name": name}, auto_id="seat_%s", label_suffix="")
