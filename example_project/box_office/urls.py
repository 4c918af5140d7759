from django.urls import path

from . import first_page, node_switch, seat_views, trial_views, views

urlpatterns = [
    path("", first_page.index, name="index"),
    path("now/", first_page.now, name="now"),
    path("orders/<uuid:click>/", first_page.your_order, name="your_order"),
    path("nodes/kill/", node_switch.kill_node, name="kill_node"),
    path("nodes/hang/", node_switch.hang_node, name="hang_node"),
    path("nodes/bring-back/", node_switch.bring_back_node, name="bring_back_node"),
    path("shows/<int:show_id>/", views.show, name="show"),
    path("shows/<int:show_id>/now/", views.now, name="show_now"),
    path("shows/<int:show_id>/order/", views.order, name="order"),
    path("shows/<int:show_id>/order-unlocked/", views.order_unlocked, name="order_unlocked"),
    path("shows/<int:show_id>/report/", views.report, name="report"),
    path("shows/<int:show_id>/orders.csv", views.export, name="export"),
    path("seats/<int:seat_id>/", seat_views.take, name="take_seat"),
    path("shows/<int:show_id>/tasks/", trial_views.tasks, name="tasks"),
    path("shows/<int:show_id>/tasks/copies/", trial_views.send_copies, name="send_copies"),
    path("shows/<int:show_id>/tasks/rehearsal/", trial_views.rehearse, name="rehearse"),
    path("shows/<int:show_id>/tasks/kill/", trial_views.kill, name="kill"),
]
