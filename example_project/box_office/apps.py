from django.apps import AppConfig


class BoxOfficeConfig(AppConfig):
    name = "example_project.box_office"
    verbose_name = "Box office"
