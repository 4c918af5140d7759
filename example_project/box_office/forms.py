import uuid

from django import forms

from .models import Show

MOST_SEATS = 8


class NameForm(forms.Form):
    name = forms.CharField(max_length=100, widget=forms.TextInput({"autocomplete": "name"}))


class OrderForm(NameForm):
    """An order.

    Each page that is rendered has forms with a token of their own: orders with the same token
    come from one form, and so from one double click.
    """

    seats = forms.IntegerField(min_value=1, max_value=MOST_SEATS, initial=2)
    show = forms.ModelChoiceField(Show.objects.all(), empty_label=None)
    # A reload must not keep the old token.
    click = forms.UUIDField(initial=uuid.uuid4, widget=forms.HiddenInput({"autocomplete": "off"}))
