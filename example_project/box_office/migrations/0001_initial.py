import django.db.models.deletion
import django.utils.timezone
from django.db import migrations, models

import django_redlock.fencing


class Migration(migrations.Migration):
    initial = True

    operations = [  # noqa: RUF012 - the form Django writes
        migrations.CreateModel(
            name="Refusal",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("status", models.PositiveSmallIntegerField()),
                ("visitor", models.CharField(db_index=True, max_length=32)),
            ],
        ),
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
                ("fence", django_redlock.fencing.FenceField()),
            ],
            options={
                "ordering": ("pk",),
            },
        ),
        migrations.CreateModel(
            name="Seat",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("row", models.CharField(max_length=2)),
                ("number", models.PositiveSmallIntegerField()),
                ("price", models.DecimalField(decimal_places=2, max_digits=6)),
                ("taken_by", models.CharField(blank=True, max_length=100)),
                ("visitor", models.CharField(blank=True, editable=False, max_length=32)),
                ("fence", django_redlock.fencing.FenceField()),
                (
                    "show",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="seats",
                        to="box_office.show",
                    ),
                ),
            ],
            options={
                "ordering": ("row", "number"),
            },
        ),
        migrations.CreateModel(
            name="Run",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("task", models.CharField(max_length=100)),
                ("task_id", models.CharField(db_index=True, max_length=64)),
                ("pid", models.PositiveIntegerField()),
                ("fence", models.BigIntegerField()),
                ("began", models.DateTimeField(default=django.utils.timezone.now)),
                ("killed", models.DateTimeField(null=True)),
                ("ended", models.DateTimeField(null=True)),
                (
                    "show",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="runs",
                        to="box_office.show",
                    ),
                ),
            ],
            options={
                "ordering": ("pk",),
            },
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
                ("locked", models.BooleanField(default=False, editable=False)),
                ("click", models.UUIDField(db_index=True, editable=False, null=True)),
                (
                    "visitor",
                    models.CharField(blank=True, db_index=True, editable=False, max_length=32),
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
