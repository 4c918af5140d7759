"""What is sold. Nothing in the table keeps a key from having two orders: that is to be seen."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import models


class Order(models.Model):
    """One order."""

    key = models.CharField(max_length=100, db_index=True)
    token = models.CharField(max_length=32)

    objects: ClassVar[models.Manager[Any]] = models.Manager()

    class Meta:
        app_label = "shop"
