"""Makes the table."""

from django.db import migrations, models


class Migration(migrations.Migration):
    """The table of the records."""

    initial = True

    operations = [  # noqa: RUF012 - the form Django writes
        migrations.CreateModel(
            name="Record",
            fields=[
                (
                    "identity",
                    models.CharField(
                        editable=False, max_length=64, primary_key=True, serialize=False
                    ),
                ),
                ("scope", models.CharField(max_length=255, verbose_name="scope")),
                ("key", models.CharField(max_length=255, verbose_name="key")),
                ("fingerprint", models.CharField(max_length=64, verbose_name="fingerprint")),
                ("begun", models.DateTimeField(verbose_name="begun")),
                ("finished", models.DateTimeField(null=True, verbose_name="finished")),
                ("expires", models.DateTimeField(db_index=True, verbose_name="expires")),
                ("status", models.PositiveSmallIntegerField(null=True, verbose_name="status")),
                ("headers", models.JSONField(default=list, verbose_name="headers")),
                ("body", models.BinaryField(null=True, verbose_name="body")),
            ],
            options={
                "verbose_name": "stored answer",
                "verbose_name_plural": "stored answers",
                "permissions": (("view_body", "Can view the bodies of stored answers"),),
                "default_permissions": ("view", "delete"),
            },
        ),
    ]
