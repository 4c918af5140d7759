from django.urls import path, register_converter
from django.urls.converters import StringConverter

from . import again, nodes, seats, trials, views
from .tasks import LONG_SECONDS


class Command(StringConverter):
    regex = "kill|hang|bring-back"


register_converter(Command, "command")

urlpatterns = [
    path("", views.index, name="index"),
    path("order/", views.order, name="order"),
    path("order-unlocked/", views.order_unlocked, name="order_unlocked"),
    path("nodes/<command:what>/", nodes.command, name="node"),
    path("shows/<int:show_id>/", views.show, name="show"),
    path("shows/<int:show_id>/report/", views.report, name="report"),
    path("shows/<int:show_id>/orders.csv", views.export, name="export"),
    path("seats/<int:seat_id>/", seats.take, name="take_seat"),
    path("shows/<int:show_id>/tasks/", trials.tasks, name="tasks"),
    path("shows/<int:show_id>/tasks/copies/", trials.copies, name="copies"),
    path("shows/<int:show_id>/tasks/rehearsal/", trials.start, name="rehearse"),
    path(
        "shows/<int:show_id>/tasks/long-rehearsal/",
        trials.start,
        {"seconds": LONG_SECONDS},
        name="rehearse_long",
    ),
    path("shows/<int:show_id>/tasks/kill/", trials.kill, name="kill"),
    path("shows/<int:show_id>/again/", again.again, name="again"),
    path("shows/<int:show_id>/again/buy/", again.buy, name="buy"),
    path("shows/<int:show_id>/again/job/", again.job, name="job"),
]
