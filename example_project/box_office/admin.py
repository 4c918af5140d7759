from django.contrib import admin

from .models import Order, Report, Show


@admin.register(Show)
class ShowAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = ("title", "sold")


@admin.register(Order)
class OrderAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = ("name", "seats", "show", "at", "locked")
    list_filter = ("show", "locked")
    search_fields = ("name",)


@admin.register(Report)
class ReportAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = ("show", "fence", "began", "ended", "orders", "seats")
