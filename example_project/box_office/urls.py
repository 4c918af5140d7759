from django.urls import path

from . import views

urlpatterns = [
    path("", views.index, name="index"),
    path("shows/<int:show_id>/", views.show, name="show"),
    path("shows/<int:show_id>/order/", views.order, name="order"),
    path("shows/<int:show_id>/order-unlocked/", views.order_unlocked, name="order_unlocked"),
    path("shows/<int:show_id>/report/", views.report, name="report"),
    path("shows/<int:show_id>/orders.csv", views.export, name="export"),
]
