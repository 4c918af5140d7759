from functools import partial

from django.contrib import admin
from django.db.transaction import non_atomic_requests
from django.templatetags.static import static
from django.urls import include, path
from django.views.generic import RedirectView

urlpatterns = [
    path("", include("example_project.box_office.urls")),
    # A login hashes for a while between its read and its write: in a transaction it would keep
    # all others from writing (see `middleware`).
    path("admin/login/", non_atomic_requests(partial(admin.site.login))),
    path("admin/", admin.site.urls),
    # If a page names no icon, as the admin's do, browsers ask for this.
    path("favicon.ico", RedirectView.as_view(url=static("box_office/seat.svg"))),
]
