from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from .models import Order, Report, Seat, Show


@admin.register(Show)
class ShowAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = ("title", "sold")

    def save_model(self, request: HttpRequest, obj: Show, form: Any, change: bool) -> None:  # noqa: FBT001 - Django's
        super().save_model(request, obj, form, change)
        if not change:
            obj.add_seats()


@admin.register(Seat)
class SeatAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """A form that somebody opened before a seat was sold saves no older fence."""

    list_display = ("__str__", "show", "price", "taken_by", "fence")
    list_filter = ("show",)
    search_fields = ("taken_by",)
    readonly_fields = ("fence",)


@admin.register(Order)
class OrderAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = ("name", "seats", "show", "at", "locked")
    list_filter = ("show", "locked")
    search_fields = ("name",)


@admin.register(Report)
class ReportAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = ("show", "fence", "began", "ended", "orders", "seats")
