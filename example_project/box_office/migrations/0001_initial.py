import django.db.models.deletion
import django.utils.timezone
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    operations = [  # noqa: RUF012 - the form Django writes
        migrations.CreateModel(
            name="Show",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("title", models.CharField(max_length=100)),
                ("sold", models.PositiveIntegerField(default=0)),
                ("fence", models.BigIntegerField(default=0, editable=False)),
            ],
        ),
        migrations.CreateModel(
            name="Report",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("fence", models.BigIntegerField()),
                ("began", models.DateTimeField(default=django.utils.timezone.now)),
                ("ended", models.DateTimeField(null=True)),
                ("orders", models.PositiveIntegerField(default=0)),
                ("seats", models.PositiveIntegerField(default=0)),
                (
                    "show",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="reports",
                        to="box_office.show",
                    ),
                ),
            ],
            options={
                "ordering": ("-fence",),
            },
        ),
        migrations.CreateModel(
            name="Order",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.CharField(max_length=100)),
                ("seats", models.PositiveSmallIntegerField(default=1)),
                ("at", models.DateTimeField(default=django.utils.timezone.now, editable=False)),
                (
                    "locked",
                    models.BooleanField(default=False, editable=False),
                ),
                (
                    "show",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="orders",
                        to="box_office.show",
                    ),
                ),
            ],
            options={
                "ordering": ("-pk",),
            },
        ),
    ]
