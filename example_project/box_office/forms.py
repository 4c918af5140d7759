from django import forms

MOST_SEATS = 8


class OrderForm(forms.Form):
    name = forms.CharField(max_length=100, widget=forms.TextInput({"autocomplete": "name"}))
    seats = forms.IntegerField(min_value=1, max_value=MOST_SEATS, initial=2)
