from functools import partial

from django.contrib import admin
from django.db.transaction import non_atomic_requests
from django.urls import include, path

urlpatterns = [
    path("", include("example_project.box_office.urls")),
    # It reads, hashes for a while, then writes: in a transaction of its own SQLite refuses that
    # ("database is locked") when somebody else has written meanwhile.
    path("admin/login/", non_atomic_requests(partial(admin.site.login))),
    path("admin/", admin.site.urls),
]
