"""Print what was sold, as JSON: a list of [id, key, token]."""

from __future__ import annotations

import json

import django

if __name__ == "__main__":
    django.setup()

    from .models import Order

    print(json.dumps(list(Order.objects.order_by("pk").values_list("pk", "key", "token"))))
