from django.contrib import admin
from django.templatetags.static import static
from django.urls import include, path
from django.views.generic import RedirectView

urlpatterns = [
    path("", include("example_project.box_office.urls")),
    path("admin/", admin.site.urls),
    # If a page names no icon, as the admin's do, browsers ask for this.
    path("favicon.ico", RedirectView.as_view(url=static("box_office/seat.svg"))),
]
