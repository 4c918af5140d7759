"""Makes no table: it lets Django know the model, so that the permissions are created."""

from django.db import migrations, models


class Migration(migrations.Migration):
    """The model of the locks' page."""

    initial = True

    operations = [  # noqa: RUF012 - the form Django writes
        migrations.CreateModel(
            name="LockKey",
            fields=[("name", models.TextField(primary_key=True, serialize=False))],
            options={
                "verbose_name": "lock",
                "verbose_name_plural": "locks",
                "permissions": (
                    ("view_lock", "Can view locks"),
                    ("release_lock", "Can release locks"),
                ),
                "managed": False,
                "default_permissions": (),
                "base_manager_name": "objects",
            },
        ),
    ]
